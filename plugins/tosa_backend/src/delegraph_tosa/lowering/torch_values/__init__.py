"""What torch recorded about a value, in TOSA's terms: types, sizes and numbers; and the reasons why TOSA has none."""
