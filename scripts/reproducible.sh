#!/usr/bin/env bash
# Builds the last commit twice, in directories of different names and one after the other, and compares binary and packages byte by
# byte. Takes two release builds; PROFILE is another profile of cargo, WINDLASS_BIN a binary that is built already, with which
# only the packages are compared.
set -euo pipefail
cd "$(dirname "$0")/.."
scratch=$(mktemp -d -p "${TMPDIR:-/var/tmp}")
trap 'rm -rf "$scratch"' EXIT
profile=${PROFILE:-release}
folder=$profile
[ "$profile" != dev ] || folder=debug
for place in one a/much/longer/path/of/two; do
    git clone -q . "$scratch/$place"
    if [ -z "${WINDLASS_BIN:-}" ]; then
        echo "building in a directory named $place"
        PROFILE=$profile "$scratch/$place/scripts/build.sh"
        WINDLASS_BIN=$scratch/$place/target/$folder/windlass "$scratch/$place/scripts/package.sh" >/dev/null
        # The bill of materials and the checksums stay; of the build only the binary is needed further.
        cp "$scratch/$place/target/$folder/windlass" "$scratch/$place/dist/"
        rm -rf "$scratch/$place/target"
    else
        "$scratch/$place/scripts/package.sh" >/dev/null
    fi
done
cd "$scratch"
different=0
for file in one/dist/*; do
    name=${file##*/}
    if cmp "$file" "a/much/longer/path/of/two/dist/$name"; then
        echo "the same: $(sha256sum "$file" | cut -c1-16)… $(stat -c %s "$file") bytes $name"
    else
        different=1
    fi
done
exit $different
