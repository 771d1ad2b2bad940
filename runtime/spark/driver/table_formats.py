"""Settings of Spark that ``spark.table-format`` stands for: the package, the SQL extension and the catalog of a format.

Both formats name their packages by the version of Spark and by its Scala: Delta since its 4.1, Iceberg always. Their
catalogs replace ``spark_catalog``, so that tables of the format and Spark's own tables are in the same databases.
"""

from __future__ import annotations

from collections.abc import Mapping

from runtime.spark.driver.packages import PACKAGES

TABLE_FORMAT = "spark.table-format"
EXTENSIONS = "spark.sql.extensions"
CATALOG = "spark.sql.catalog.spark_catalog"
SCALA = "2.13"
"""The Scala of every Spark 4."""

_ARTIFACTS = {"delta": "io.delta:delta-spark_", "iceberg": "org.apache.iceberg:iceberg-spark-runtime-"}
_EXTENSIONS = {
    "delta": "io.delta.sql.DeltaSparkSessionExtension",
    "iceberg": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
}
_CATALOGS = {
    "delta": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "iceberg": "org.apache.iceberg.spark.SparkSessionCatalog",
}
_CATALOG_KINDS = (f"{CATALOG}.type", f"{CATALOG}.catalog-impl")


def with_table_format(settings: Mapping[str, str], spark_version: str, warehouse: str) -> dict[str, str]:
    """Return settings in which those of a table format stand instead of ``spark.table-format``.

    The format's package and extension are added to those that the settings name. A catalog that they name stays.

    Args:
        settings: of Spark. ``spark.table-format`` is ``delta`` or ``iceberg``, with ``:VERSION`` for its package.
        spark_version: as in ``4.3.0``.
        warehouse: the directory of tables, below which Iceberg keeps its own unless the settings say otherwise.
    """
    found = {key: value for key, value in settings.items() if key != TABLE_FORMAT}
    name, _, version = settings.get(TABLE_FORMAT, "").partition(":")
    if not name:
        return found
    if version:
        spark = ".".join(spark_version.split(".")[:2])
        found[PACKAGES] = _added(found.get(PACKAGES, ""), f"{_ARTIFACTS[name]}{spark}_{SCALA}:{version}", name)
    found[EXTENSIONS] = _added(found.get(EXTENSIONS, ""), _EXTENSIONS[name])
    found.setdefault(CATALOG, _CATALOGS[name])
    if found[CATALOG] == _CATALOGS["iceberg"] and not any(key in found for key in _CATALOG_KINDS):
        found[f"{CATALOG}.type"] = "hadoop"
        found.setdefault(f"{CATALOG}.warehouse", f"{warehouse.rstrip('/')}/iceberg")
    return found


def _added(present: str, item: str, format_name: str = "") -> str:
    """Return a list with one more item, unless the item, or another package of its format, is in it."""
    items = [each.strip() for each in present.split(",") if each.strip()]
    artifact = _ARTIFACTS.get(format_name)
    if item in items or (artifact is not None and any(each.startswith(artifact) for each in items)):
        return ",".join(items)
    return ",".join([*items, item])
