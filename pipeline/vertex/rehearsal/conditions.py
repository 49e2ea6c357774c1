"""Evaluate conditions of tasks, in the part of the Common Expression Language (cel.dev) that TFX writes."""

import ast
import re
from collections.abc import Mapping
from typing import Any

from pipeline.errors import UserError
from pipeline.vertex.rehearsal.local_metadata import Artifact


def holds(condition: str, inputs: Mapping[str, list[Artifact]]) -> bool:
    """Return whether a condition holds, such as "inputs.artifacts['x'].artifacts[0].metadata['blessed'] == 1.0".

    Raises:
        UserError: it has an operator that is not known here.
    """
    words = {"&&": " and ", "||": " or ", "!": " not "}
    python = re.sub(r"'[^']*'|&&|\|\||!(?==)|!", lambda match: words.get(match[0], match[0]), condition)
    python = python.replace(" not =", "!=")
    root = {"artifacts": {key: {"artifacts": artifacts} for key, artifacts in inputs.items()}}

    def value(node: ast.expr) -> Any:
        match node:
            case ast.Constant():
                return node.value
            case ast.Name(id="inputs"):
                return root
            case ast.Attribute(value=parent, attr=name):
                return value(parent)[name]
            case ast.Subscript(value=parent, slice=key):
                return value(parent)[value(key)]
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not value(operand)
            case ast.BoolOp(op=ast.And(), values=parts):
                return all(value(part) for part in parts)
            case ast.BoolOp(op=ast.Or(), values=parts):
                return any(value(part) for part in parts)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return value(left) + value(right)
            case ast.Compare(left=left, ops=[operator], comparators=[right]):
                a, b = value(left), value(right)
                match operator:
                    case ast.Eq():
                        return a == b
                    case ast.NotEq():
                        return a != b
                    case ast.Lt():
                        return a < b
                    case ast.Gt():
                        return a > b
        raise UserError(f"the rehearsal cannot evaluate the condition {condition!r}")

    try:
        return bool(value(ast.parse(python.strip(), mode="eval").body))
    except (SyntaxError, KeyError, IndexError, TypeError) as error:
        raise UserError(f"the rehearsal cannot evaluate the condition {condition!r}: {error!r}") from error
