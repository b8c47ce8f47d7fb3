"""A store's settings: `floodmark.toml`, and the environment variables that replace single values of it."""

from floodmark.config.reading import Origin, key_lines, load, parsed, toml_value, variables
from floodmark.config.settings import (
    FILE_NAME,
    LAKE_NAMESPACE,
    SECTIONS,
    CatalogSettings,
    ControlSettings,
    FlushSettings,
    FunctionSettings,
    RunSettings,
    Settings,
    SparkSettings,
    SpoolSettings,
    UpkeepSettings,
    secret,
    settings_file,
)
from floodmark.config.showing import Examined, Value, catalog_values, examine, initial_text, without_secrets

__all__ = [
    "FILE_NAME",
    "LAKE_NAMESPACE",
    "SECTIONS",
    "CatalogSettings",
    "ControlSettings",
    "Examined",
    "FlushSettings",
    "FunctionSettings",
    "Origin",
    "RunSettings",
    "Settings",
    "SparkSettings",
    "SpoolSettings",
    "UpkeepSettings",
    "Value",
    "catalog_values",
    "examine",
    "initial_text",
    "key_lines",
    "load",
    "parsed",
    "secret",
    "settings_file",
    "toml_value",
    "variables",
    "without_secrets",
]
