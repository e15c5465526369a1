"""The forms of docs/schema.json."""

import json
from pathlib import Path

import jsonschema

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/schema.json").read_text("utf-8"))


def validate(found, definition):
    """Raise ValidationError unless ``found`` is of a form."""
    form = {**SCHEMA, "anyOf": [{"$ref": f"#/$defs/{definition}"}]}
    # `jsonschema.validate` checks the schema each time, too
    jsonschema.Draft202012Validator(form).validate(found)
