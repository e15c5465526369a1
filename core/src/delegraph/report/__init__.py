"""The report of a lowering: its rows and facts, written as text and JSON. Plugins write
other formats.
"""
