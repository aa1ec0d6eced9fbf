#!/bin/sh
# Records the facts of rules: runs upstream's own tests, with recorders in place of what they call, and keeps each question
# with its answer. Nothing of upstream's folder is changed.
#
#   KUBERNETES=folder ./record.sh out
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=$(mkdir -p "$1" && cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rules=$KUBERNETES/staging/src/k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel
definitions=$KUBERNETES/staging/src/k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation
sed -e 's/^func validator(/func validatorUnrecorded(/' \
    -e 's/^func (s \*Validator) Validate(/func (s *Validator) validateUnrecorded(/' "$rules/validation.go" > "$work/validation.go"
sed -e 's/^func Compile(/func compileUnrecorded(/' "$rules/compilation.go" > "$work/compilation.go"
sed -e 's/^func validateCustomResourceDefinitionValidation(/func validateUnrecorded(/' \
    "$definitions/validation.go" > "$work/definitions.go"
cat > "$work/overlay.json" <<END
{"Replace": {
  "$rules/validation.go": "$work/validation.go", "$rules/compilation.go": "$work/compilation.go",
  "$rules/recorder.go": "$here/validator.go",
  "$definitions/validation.go": "$work/definitions.go", "$definitions/recorder.go": "$here/definition.go"}}
END
export RULE_FACTS="$work"
cd "$KUBERNETES"
# A recorder asks more than the tests expect: only the facts count.
go test -overlay "$work/overlay.json" -count=1 k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel || true
mv "$work/compilations.jsonl" "$work/all.compilations"
go test -overlay "$work/overlay.json" -count=1 k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation || true
rm -f "$work/compilations.jsonl" && mv "$work/all.compilations" "$work/compilations.jsonl"
for name in validations compilations definitions; do
    # Objects that are large only to be costly are left to the tests here.
    echo "# Recorded by tests/recorder/rules: what upstream answers in its own tests. Its README.md says how." > "$out/$name.jsonl"
    LC_ALL=C sort -u "$work/$name.jsonl" | awk 'length($0) < 12000' >> "$out/$name.jsonl"
    wc -l "$work/$name.jsonl" "$out/$name.jsonl" >&2
done
