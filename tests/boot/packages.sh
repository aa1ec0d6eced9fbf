#!/usr/bin/env bash
# The packages that the boot tests install, into DIR: windlass.deb and windlass.rpm of dist/, and what they are an upgrade from and
# to: older.deb, which is OLD_PACKAGE, a Debian package of an earlier version, or else the same with an earlier version's number;
# and next.rpm, the same with a later one's.
set -euo pipefail
cd "$(dirname "$0")/../.."
dir=${1:?a directory}
deb=$(find dist -name '*.deb' 2>/dev/null | head -n 1)
rpm=$(find dist -name '*.rpm' 2>/dev/null | head -n 1)
[ -n "$deb" ] && [ -n "$rpm" ] || { echo "packages.sh: no packages in dist/; make package makes them" >&2; exit 1; }
cp "$deb" "$dir/windlass.deb"
cp "$rpm" "$dir/windlass.rpm"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
if [ -n "${OLD_PACKAGE:-}" ]; then
    cp "$OLD_PACKAGE" "$dir/older.deb"
else
    dpkg-deb -R "$deb" "$scratch/older"
    sed -i 's/^Version: .*/Version: 0.0.1/' "$scratch/older/DEBIAN/control"
    dpkg-deb -Zgzip -z1 --root-owner-group -b "$scratch/older" "$dir/older.deb" >/dev/null
fi
# rpm packages are not unpacked and packed again as easily; what the first was made of is still there. Compressing takes minutes.
"$(scripts/cargo-tool.sh cargo-generate-rpm)" -p cli --payload-compress none --set-metadata 'version = "99.0"' --output "$scratch/"
mv "$scratch"/*.rpm "$dir/next.rpm"
