"""
Put a bill of materials into a wheel: hatchling runs this when it builds one.

It is CycloneDX 1.6, lies below ``.dist-info/sboms/`` as PEP 770 has it, and names the release and the files of others
in it, by the manifest that lies beside them. Nothing in it depends on when or where it is made.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

VENDORED = "queuehint/web/static/vendor"


class Sbom(BuildHookInterface[Any]):
    """Writes the file, has it added, and removes it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the bill to a wheel; *version* is the kind of the wheel."""
        self._folder = tempfile.TemporaryDirectory()
        path = Path(self._folder.name) / "queuehint.cdx.json"
        manifest = json.loads((Path(self.root) / VENDORED / "manifest.json").read_text("utf-8"))
        made = bill(self.metadata.name, self.metadata.version, manifest["files"])
        path.write_text(json.dumps(made, indent=2) + "\n", "utf-8")
        build_data["sbom_files"].append(str(path))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Leave no file but the wheel."""
        self._folder.cleanup()


def bill(name: str, version: str, files: list[dict[str, str]]) -> dict[str, Any]:
    """Return the bill of a release, as CycloneDX has it."""
    packages: dict[str, dict[str, Any]] = {}
    for file in files:
        package = packages.setdefault(
            file["package"],
            {
                "type": "library",
                "bom-ref": file["package"],
                "name": file["project"],
                "version": file["version"],
                "licenses": [{"license": {"id": file["license"]}}],
                "purl": file["package"],
                "components": [],
            },
        )
        package["components"].append(
            {
                "type": "file",
                "name": f"{VENDORED}/{file['file']}",
                "hashes": [{"alg": "SHA-256", "content": file["sha256"]}],
            }
        )
    purl = f"pkg:pypi/{name}@{version}"
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": purl,
                "name": name,
                "version": version,
                "licenses": [{"license": {"id": "MIT"}}],
                "purl": purl,
            }
        },
        "components": list(packages.values()),
        "dependencies": [{"ref": purl, "dependsOn": sorted(packages)}],
    }
