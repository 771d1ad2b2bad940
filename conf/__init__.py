"""Configuration: declared options, their layers and their reference. It imports nothing else of the project."""

from conf.configuration import Configuration
from conf.option import ConfigOption
from conf.secret import SecretStr

__all__ = ["ConfigOption", "Configuration", "SecretStr"]
