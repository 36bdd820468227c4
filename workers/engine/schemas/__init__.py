"""JSON schemas as grammars of exactly what they allow.

* A grammar holds a schema if it admits the schema's values, and no others. What cannot be held is refused, or left out
  (`loosening.py`).
* A keyword is kept if a `Document` has it in its nodes (`KEPT`). The document writes the others as kept ones.
* A branch is a list of nodes without choices. An array, or an object, must fit all nodes of one branch (`branches.py`).
* A tag is a structural tag of xgrammar: text between fixed marks, with schemas and grammars in it (`tags.py`).
"""
