#!/usr/bin/env bash
# Makes dist/: a Debian package, an RPM package, an archive for other systems, the bill of materials and the checksums, all of
# the one binary that is built already: target/release/windlass, or WINDLASS_BIN. Meant to make the same bytes of the same inputs: `make reproducible` compares.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$(realpath "${WINDLASS_BIN:-target/release/windlass}")
[ -x "$bin" ] || { echo "package.sh: there is no $bin; make build makes it" >&2; exit 1; }
# Every file carries the time of the last commit.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH LC_ALL=C TZ=UTC
umask 022
version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
machine=$(uname -m)
stage=$PWD/target/package/stage
rm -rf target/package
mkdir -p "$stage"/{usr/bin,usr/lib/{systemd/system,sysusers.d,tmpfiles.d},etc/windlass,usr/share/{man/man1,doc/windlass}} \
    "$stage"/usr/share/{bash-completion/completions,zsh/site-functions,fish/vendor_completions.d}

install -m 0755 "$bin" "$stage/usr/bin/windlass"
install -m 0644 systemd/windlass.service systemd/windlass-proxy.service "$stage/usr/lib/systemd/system/"
install -m 0644 systemd/windlass.sysusers "$stage/usr/lib/sysusers.d/windlass.conf"
install -m 0644 systemd/windlass.tmpfiles "$stage/usr/lib/tmpfiles.d/windlass.conf"
install -m 0644 systemd/config.yaml "$stage/etc/windlass/config.yaml"
"$bin" completions bash >"$stage/usr/share/bash-completion/completions/windlass"
"$bin" completions zsh >"$stage/usr/share/zsh/site-functions/_windlass"
"$bin" completions fish >"$stage/usr/share/fish/vendor_completions.d/windlass.fish"
"$bin" manual "$stage/usr/share/man/man1"
gzip -9n "$stage"/usr/share/man/man1/*.1
doc=$stage/usr/share/doc/windlass
install -m 0644 README.md ARCHITECTURE.md docs/*.md packaging/copyright "$doc/"
install -m 0644 LICENSE "$stage/"
scripts/notices.py | gzip -9n >"$doc/NOTICE.gz"

# The bill of materials is written next to the manifests, from where it is moved.
"$(scripts/cargo-tool.sh cargo-cyclonedx)" cyclonedx --manifest-path cli/Cargo.toml --format json --target all \
    --override-filename windlass.cdx --quiet
find . -mindepth 2 -maxdepth 2 -name 'windlass.cdx.json' -not -path './cli/*' -delete
# Where it was built is nobody's business, and would differ.
sed "s,file://$PWD/,file:///windlass/,g" cli/windlass.cdx.json >target/package/windlass.cdx.json
rm cli/windlass.cdx.json
gzip -9nc target/package/windlass.cdx.json >"$doc/windlass.cdx.json.gz"
find "$stage" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +

rm -rf dist
mkdir dist
"$(scripts/cargo-tool.sh cargo-deb)" -p windlass --no-build --no-strip --offline --locked --quiet \
    --compress-type xz --compress-system --output dist/ >/dev/null
"$(scripts/cargo-tool.sh cargo-generate-rpm)" -p cli --payload-compress zstd --source-date "$SOURCE_DATE_EPOCH" --output dist/
name=windlass-$version-linux-$machine
tar -C target/package --transform "s,^stage,$name," --sort=name --owner=0 --group=0 --numeric-owner \
    --mtime="@$SOURCE_DATE_EPOCH" -c stage | gzip -9n >"dist/$name.tar.gz"
cp target/package/windlass.cdx.json "dist/windlass-$version.cdx.json"
(cd dist && sha256sum -- * >SHA256SUMS)

# What whoever unpacks the archive must have: nothing but these.
echo "the program needs:"
objdump -p "$bin" | sed -n 's/^ *NEEDED */  /p'
echo "  glibc $(objdump -T "$bin" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1 | sed s/GLIBC_//) or later"
cat dist/SHA256SUMS
