"""Reads the layers of a configuration: YAML files, with the line of every key, and ``-D key=value``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import yaml

from conf.configuration import RawValue
from conf.errors import ConfigurationFileError, OverrideSyntaxError
from conf.registry import ConfigurationWarning, is_section, options_by_key, suggest

CONF_DIR_VARIABLE = "UNDERSTUDY_CONF_DIR"
FILE_NAME = "config.yaml"

_NULL = "tag:yaml.org,2002:null"

Layer = dict[str, RawValue]


def read_layers(
    config_file: Path | None, overrides: Iterable[str], environ: Mapping[str, str]
) -> tuple[list[Layer], list[ConfigurationWarning]]:
    """Return the layers, lowest first, and warnings. Arguments and errors as ``Configuration.load``."""
    layers = [_packaged_layer()]
    warnings: list[ConfigurationWarning] = []
    user_file = config_file
    if user_file is None and environ.get(CONF_DIR_VARIABLE):
        user_file = Path(environ[CONF_DIR_VARIABLE]) / FILE_NAME
    if user_file is not None:
        layer = _file_layer(user_file, "--config" if config_file is not None else CONF_DIR_VARIABLE)
        warnings += _permission_warnings(user_file, layer)
        layers.append(layer)
    layers.append(_override_layer(overrides))
    return layers, warnings


def parse_yaml(text: str, name: str) -> Layer:
    """Return the keys of a YAML document, nested or flat, each value as its text.

    YAML's rules do not convert values (``off``, ``1:30``, ``1e3`` stay texts); the options' own forms do.

    Args:
        text: the document.
        name: the file's name, for the origin of each value.

    Raises:
        ConfigurationFileError: not YAML, not a map, a key given twice, an alias.
    """
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        root = yaml.compose(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{name}:{mark.line + 1}" if mark is not None else name
        raise ConfigurationFileError(
            f"{place}: not valid YAML: {error.problem or error.context}",
            "fix this line; quote a value that YAML misreads",
        ) from error
    except yaml.YAMLError as error:  # a character that YAML does not allow
        first_line = str(error).splitlines()[0]
        raise ConfigurationFileError(f"{name}: not valid YAML: {first_line}", "save the file as UTF-8 text") from error
    layer: Layer = {}
    if root is not None and root.tag != _NULL:
        _flatten(root, "", name, layer, set())
    return layer


def _flatten(node: yaml.Node, prefix: str, name: str, layer: Layer, seen: set[int]) -> None:
    if not isinstance(node, yaml.MappingNode):
        what = "the value of " + repr(prefix) if prefix else "the document"
        raise ConfigurationFileError(
            f"{_place(node, name)}: {what} is not a map of keys to values", "write one `key: value` on each line"
        )
    if id(node) in seen:  # a recursive alias would never end, nested ones would grow without bound
        raise ConfigurationFileError(f"{_place(node, name)}: YAML aliases are not supported", "write the value out")
    seen.add(id(node))
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            raise ConfigurationFileError(f"{_place(key_node, name)}: a key must be a text", "write `key: value`")
        key = f"{prefix}.{key_node.value}" if prefix else str(key_node.value)
        origin = _place(key_node, name)
        if isinstance(value_node, yaml.MappingNode):
            _flatten(value_node, key, name, layer, seen)
            continue
        if value_node.tag == _NULL and key not in options_by_key() and is_section(key):
            continue  # a heading whose lines are all commented out
        if key in layer:
            raise ConfigurationFileError(
                f"{origin}: {key!r} is set again, first at {layer[key].origin}", "keep one of the two"
            )
        layer[key] = RawValue(_value(value_node, key, name), origin)


def _value(node: yaml.Node, key: str, name: str) -> str | list[str]:
    if node.tag == _NULL:
        return ""
    if isinstance(node, yaml.ScalarNode):
        return str(node.value).strip()
    if isinstance(node, yaml.SequenceNode) and all(isinstance(item, yaml.ScalarNode) for item in node.value):
        return [str(item.value).strip() for item in node.value]
    raise ConfigurationFileError(
        f"{_place(node, name)}: the value of {key!r} is neither a text nor a list of texts", ""
    )


def _place(node: yaml.Node, name: str) -> str:
    return f"{name}:{node.start_mark.line + 1}"


def _packaged_layer() -> Layer:
    """Return the values of the packaged file that differ from the declared defaults."""
    layer = parse_yaml(Path(__file__).with_name(FILE_NAME).read_text("utf-8"), f"packaged {FILE_NAME}")
    return {key: raw for key, raw in layer.items() if not _repeats_default(key, raw)}


def _repeats_default(key: str, raw: RawValue) -> bool:
    option = options_by_key().get(key)
    if option is None or option.default is None or not isinstance(raw.value, str):
        return False
    return bool(option.value_type.parse(raw.value) == option.default)


def _file_layer(path: Path, named_by: str) -> Layer:
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigurationFileError(f"{path} is not UTF-8 text", "save it as UTF-8") from error
    except OSError as error:
        raise ConfigurationFileError(
            f"cannot read the configuration file {path}: {error.strerror}", f"check {named_by}, which names it"
        ) from error
    return parse_yaml(text, str(path))


def _override_layer(overrides: Iterable[str]) -> Layer:
    layer: Layer = {}
    for override in overrides:
        key, equals, value = override.partition("=")
        key = key.strip()
        if not equals or not key:
            known = key if key in options_by_key() else suggest(key) if key else None
            example = f"{known}={options_by_key()[known].value_type.example}" if known else "rpc.frame-size=10mb"
            raise OverrideSyntaxError(f"-D {override!r} is not key=value", f"write it like this: -D {example!r}")
        layer[key] = RawValue(value.strip(), "-D")
    return layer


def _permission_warnings(path: Path, layer: Layer) -> list[ConfigurationWarning]:
    secret = [key for key in layer if key in options_by_key() and options_by_key()[key].value_type.secret]
    if secret and path.stat().st_mode & 0o077:
        return [ConfigurationWarning(f"{path} holds {secret[0]!r} and other users may read it", f"chmod 600 {path}")]
    return []
