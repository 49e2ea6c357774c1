"""Fingerprints of code: equal for equal code only."""

import ast
from pathlib import Path

import pytest

from pipeline.packaging.fingerprints import code_digest, imported_names

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "other",
    [
        *("f(a, [b], c)", "f(a, [[b, c]])", "f([a, b, c])", "f(a, [c, b])", "f(a, b, c)", "f(a, (b, c))"),
        *("f(*a, [b, c])", "f(a=[b, c])", "f(a, ['b', c])", "g(a, [b, c])", "f(a, [b, c]); f"),
    ],
)
def test_other_code_has_another_digest(other):
    assert code_digest(other) != code_digest("f(a, [b, c])")


def test_constants_that_are_equal_in_python_are_different_code():
    constants = ["1", "1.0", "True", "1 + 0j", '"1"', 'b"1"', '"True"', "None", '"None"', "...", "'Constant'"]
    assert len({code_digest(f"x = {constant}") for constant in constants}) == len(constants)


def test_comments_and_line_breaks_do_not_count():
    plain = 'def f(a, b=(1, 2)):\n    return {"a": a, "b": b}\n'
    other = '"""A docstring."""\n\n\ndef f(\n    a, b=(1,\n    2),\n):  # a comment\n\n    return {"a": a,\n "b": b}'
    assert code_digest(plain) == code_digest(other)


@pytest.mark.slow
def test_in_this_repository_files_have_equal_digests_where_their_syntax_trees_are_equal():
    sources = {path.read_text() for path in (ROOT / "pipeline").rglob("*.py")}
    trees = {source: ast.parse(source) for source in sources}
    for tree in trees.values():
        if tree.body and isinstance(tree.body[0], ast.Expr):
            del tree.body[0]
    pairs = {(code_digest(source), ast.dump(tree)) for source, tree in trees.items()}
    assert len(pairs) == len({digest for digest, _ in pairs}) == len({tree for _, tree in pairs}) > 200


def test_imports_are_found_wherever_they_stand():
    source = (
        "import a.b, c\nif c:\n    def f():\n        from d.e import g, h as i\nfrom . import j\nfrom .k import l\n"
    )
    assert imported_names(source) == ("a.b", "c", "d.e", "d.e.g", "d.e.h")
