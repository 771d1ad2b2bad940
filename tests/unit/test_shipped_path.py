"""What is packed for executors on other machines, and where they find it."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

from runtime.spark.task.imports import ShippedPath


def test_modules_archives_and_directories_are_packed(tmp_path: Path) -> None:
    module, archive, site = tmp_path / "m" / "one.py", tmp_path / "two.zip", tmp_path / "site"
    for path in (module, archive, site / "three" / "native.so"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.name)
    shipped = ShippedPath([str(module), str(archive), str(site)])
    name = shipped.name
    assert shipped.entries == [f"{name}/000", f"{name}/001/two.zip", f"{name}/002"]
    file, _, alias = shipped.pack(tmp_path / "shipped").partition("#")
    assert alias == name
    with tarfile.open(file) as packed:
        names = {member.name for member in packed.getmembers() if member.isfile()}
    assert names == {"000/one.py", "001/two.zip", "002/three/native.so"}


def test_the_same_is_packed_once_and_a_changed_module_is_another(tmp_path: Path) -> None:
    module = tmp_path / "one.py"
    module.write_text("1")
    first = ShippedPath([str(module)])
    file = Path(first.pack(tmp_path).partition("#")[0])
    packed_at = file.stat().st_mtime_ns
    assert ShippedPath([str(module)]).pack(tmp_path) == first.pack(tmp_path)
    assert file.stat().st_mtime_ns == packed_at
    os.utime(module, ns=(1, 1))
    assert ShippedPath([str(module)]).name != first.name
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([module.name, file.name])
