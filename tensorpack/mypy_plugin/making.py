"""The semantics of attrs for `@payload`, by mypy's own plugin for attrs.

attrs' documentation says that mypy cannot be told of changed defaults. It can: its
plugin is handed a copy of the decorator's call with our defaults written out.
"""

from mypy.nodes import (
    ARG_NAMED,
    GDEF,
    CallExpr,
    ClassDef,
    Expression,
    NameExpr,
    RefExpr,
)
from mypy.plugin import ClassDefContext
from mypy.plugins.attrs import attr_class_maker_callback, attr_tag_callback
from mypy.plugins.dataclasses import (
    DataclassTransformer,
    dataclass_class_maker_callback,
)
from mypy.semanal import SemanticAnalyzer
from mypy.semanal_shared import find_dataclass_transform_spec

from tensorpack.mypy_plugin.classes import unfit_kind
from tensorpack.mypy_plugin.config import Config
from tensorpack.mypy_plugin.names import PAYLOAD, TAG

__all__ = ["decorates", "make", "tag"]


def decorates(fullname: str, config: Config) -> bool:
    """Tell whether a function is `@payload`, or a wrapper that the settings name."""
    return fullname == PAYLOAD or fullname in config.decorators


def tag(ctx: ClassDefContext, config: Config) -> None:
    """Mark a class as a payload, before any other class is looked at."""
    if unfit_kind(ctx.cls.info) is not None:
        return
    ctx.cls.info.metadata[TAG] = {}
    if not _makers(ctx, config) and not find_dataclass_transform_spec(ctx.cls.info):
        attr_tag_callback(ctx)


def _makers(ctx: ClassDefContext, config: Config) -> list[Expression]:
    """List the other decorators that make an attrs class or a dataclass."""
    api = ctx.api
    if not isinstance(api, SemanticAnalyzer):
        return []
    found = []
    for decorator in ctx.cls.decorators:
        name = api.get_fullname_for_hook(decorator) or ""
        if decorates(name, config):
            continue
        known = api.plugin.get_class_decorator_hook_2(name) is not None
        if known or find_dataclass_transform_spec(decorator):
            found.append(decorator)
    return found


def make(ctx: ClassDefContext, config: Config) -> bool:
    """Give the class what attrs or `dataclasses` generate.

    Over a class that is made already, that decorator's own hook runs first, since
    mypy runs the hooks of decorators from the top.

    Returns:
        Whether all was known; if not, mypy comes again.
    """
    makers = _makers(ctx, config)
    api = ctx.api
    spec = find_dataclass_transform_spec(ctx.cls.info)
    if spec is not None and isinstance(api, SemanticAnalyzer):  # a base makes the class
        return DataclassTransformer(ctx.cls, ctx.cls, spec, api).transform()
    if not makers or not isinstance(api, SemanticAnalyzer):
        call = _call_with_defaults(ctx.reason, ctx.cls, api)
        made = ClassDefContext(ctx.cls, call, api)
        return attr_class_maker_callback(made, None, slots_default=True)
    for maker in makers:
        name = api.get_fullname_for_hook(maker) or ""
        hook = api.plugin.get_class_decorator_hook_2(name)
        hook = hook or dataclass_class_maker_callback
        if not hook(ClassDefContext(ctx.cls, maker, api)):
            return False
    return True


def _call_with_defaults(
    reason: Expression, cls: ClassDef, api: object
) -> CallExpr | Expression:
    """Copy the decorator's call and write our defaults out."""
    given = reason if isinstance(reason, CallExpr) else None
    defaults = {"eq": False, "order": False}
    if _writes_init(cls):
        defaults["init"] = False
    args, kinds, names = (
        (list(given.args), list(given.arg_kinds), list(given.arg_names))
        if given
        else ([], [], [])
    )
    for name, value in defaults.items():
        if name not in names:
            args.append(_bool(value))
            kinds.append(ARG_NAMED)
            names.append(name)
    call = CallExpr(_callee(reason, api), args, kinds, names)
    call.set_line(reason)
    return call


def _writes_init(cls: ClassDef) -> bool:
    """Tell whether the class body defines `__init__` itself."""
    symbol = cls.info.names.get("__init__")
    return symbol is not None and not symbol.plugin_generated


def _callee(reason: Expression, api: object) -> Expression:
    """Name `@payload` itself, also for a wrapper: its signature has every option."""
    written = reason.callee if isinstance(reason, CallExpr) else reason
    if isinstance(api, SemanticAnalyzer):
        symbol = api.lookup_fully_qualified_or_none(PAYLOAD)
        if symbol is not None:
            callee = NameExpr("payload")
            callee.node, callee.kind, callee.fullname = symbol.node, GDEF, PAYLOAD
            return callee
    return written


def _bool(value: bool) -> RefExpr:
    """Write True or False as an expression."""
    expression = NameExpr(str(value))
    expression.fullname = f"builtins.{value}"
    return expression
