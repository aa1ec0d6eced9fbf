#!/usr/bin/env bash
# Fuzzes the readers of kernel state, of logs, of manifests and of what clients send to the API and the node, and the writer
# of volumes' files, for SECONDS_EACH (60), FUZZ_JOBS (1) side by side, starting from the golden files and from examples. Works
# with the stable compiler: libFuzzer needs coverage counters only.
set -euo pipefail
cd "$(dirname "$0")/.."
each=${SECONDS_EACH:-60}
jobs=${FUZZ_JOBS:-1}
running=()
export RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1"
triple=$(rustc -vV | sed -n 's/^host: //p')
cargo build --release --manifest-path fuzz/Cargo.toml --target-dir target/fuzz --target "$triple"
for target in applies bodies channel_message dns_packets kernel_state log_entry log_reader manifests owners patches schemas selectors spdy_connection spdy_headers subjects token volume_tree; do
  corpus=target/fuzz/corpus/$target
  mkdir -p "$corpus"
  case $target in
    applies)
      printf '%s' '[{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d","labels":{"a":"b"}},"spec":{"replicas":2,"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i","ports":[{"containerPort":80}],"env":[{"name":"E","value":"1"}]}]}}}},{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d"},"spec":{"replicas":3,"template":{"spec":{"containers":[{"name":"c","image":"j"},{"name":"e","image":"k"}],"tolerations":[{"key":"k"}]}}}}]' >"$corpus/deployment"
      printf '%s' '[{"apiVersion":"v1","kind":"Service","metadata":{"name":"s","finalizers":["a/b"]},"spec":{"ports":[{"port":80,"protocol":"TCP"},{"port":80,"protocol":"UDP"}]}},{"apiVersion":"v1","kind":"Service","metadata":{"name":"s","finalizers":["c/d"]},"spec":{"ports":[{"port":80}],"selector":{"x":"y"}}}]' >"$corpus/service" ;;
    bodies)
      cp proxy/tests/golden/*.yaml "$corpus"
      printf 'k8s\0\n\017\n\002v1\022\tConfigMap\022\015\n\003\n\001m\022\006\n\001a\022\001b' >"$corpus/protobuf"
      printf '%s' '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i","args":[null],"resources":{"limits":{"cpu":0.5}}}]}}' >"$corpus/pod" ;;
    dns_packets)
      printf '\0\1\1\0\0\1\0\0\0\0\0\1\2_p\4_tcp\1h\1n\3svc\1c\0\0\41\0\1\0\0\51\4\320\0\0\200\0\0\0' >"$corpus/service"
      printf '\0\1\1\0\0\1\0\0\0\0\0\0\1x\1n\3svc\1c\0\0\1\0\1' >"$corpus/alias" ;;
    kernel_state) cp proxy/tests/golden/*.save "$corpus" ;;
    log_entry)
      printf '%s' '{"log":"a \u00e9\n","stream":"stdout","time":"2026-01-01T00:00:00.5Z"}' >"$corpus/json"
      printf '%s' '2026-01-01T00:00:00.5Z stderr P part' >"$corpus/cri" ;;
    log_reader)
      printf '\1\100\2%s stdout P a \n%s stdout F b\n{"log":"c\\n","stream":"stderr","time":"%s"}\n' \
        2026-01-01T00:00:00.5Z 2026-01-01T00:00:01Z 2026-01-01T00:00:02Z >"$corpus/both" ;;
    owners)
      printf '%s' '[{"manager":"m","operation":"Apply","apiVersion":"v1","time":"2026-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{"f:data":{".":{},"f:a":{}},"f:metadata":{"f:finalizers":{"v:\"x\"":{}},"f:ownerReferences":{"k:{\"uid\":\"u\"}":{}}}},"subresource":"status"}]' >"$corpus/entry" ;;
    patches)
      printf '%s' '[{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}]}},{"spec":{"$setElementOrder/containers":[{"name":"c"}],"containers":[{"name":"c","$patch":"delete"},{"name":"d","image":"j"}],"nodeSelector":{"a":null}}}]' >"$corpus/strategic"
      printf '%s' '[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"m"},"data":{"a":"b"}},[{"op":"copy","from":"/data/a","path":"/data/c"},{"op":"test","path":"/kind","value":"ConfigMap"},{"op":"move","from":"/data/c","path":"/data/d"}]]' >"$corpus/json" ;;
    schemas)
      printf '%s' '[{"type":"object","properties":{"spec":{"type":"object","properties":{"l":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["k"],"items":{"type":"object","required":["k"],"properties":{"k":{"type":"string","pattern":"^[a-c]+$"},"n":{"type":"integer","default":1,"maximum":5}}}},"p":{"x-kubernetes-int-or-string":true},"e":{"type":"object","x-kubernetes-embedded-resource":true,"x-kubernetes-preserve-unknown-fields":true}},"anyOf":[{"required":["l"]},{"required":["p"]}]}}},{"spec":{"l":[{"k":"a"},{"k":"b","n":9}],"p":"50%","e":{"apiVersion":"v1","kind":"Pod","metadata":{"labels":{"a":null}}}}},{"spec":{"l":[{"k":"b","n":9}]}}]' >"$corpus/map" ;;
    selectors)
      printf '%s' 'a=b,c!=d,e in (f,g),!h,n>5,x.y/z' >"$corpus/labels"
      printf '%s' 'metadata.name=x,spec.nodeName!=y' >"$corpus/fields"
      printf '%s' '{"matchLabels":{"a":"b"},"matchExpressions":[{"key":"n","operator":"In","values":["5","6"]},{"key":"c","operator":"DoesNotExist"}]}' >"$corpus/object" ;;
    manifests) cp proxy/tests/golden/*.yaml "$corpus" ;;
    # Two writes with a link out of the volume in between.
    volume_tree) printf '\5\0\0\1\0\1x\3\0\4\2\0\4\0\5\0\0\1\0\1y' >"$corpus/links" ;;
    spdy_connection)
      printf '\0\5\200\3\0\1\0\0\0\12\0\0\0\1\0\0\0\0\0\0\0\0\0\1\1\0\0\2hi' >"$corpus/stream"
      printf '\0\1\200\3\0\6\0\0\0\4\0\0\0\1\200\3\0\3\0\0\0\10\0\0\0\1\0\0\0\5' >"$corpus/ping" ;;
    # A zlib head that names the dictionary (its Adler-32 is e3c6a7c2), and a stored block.
    spdy_headers) printf '\0\30\170\273\343\306\247\302\0\15\0\362\377\0\0\0\1\0\0\0\1a\0\0\0\0' >"$corpus/pair" ;;
    channel_message)
      printf '\0\0hello' >"$corpus/stdin"
      printf '\2' >"$corpus/base64" && printf '0aGVsbG8=' >>"$corpus/base64"
      printf '\0\4{"Width":80,"Height":24}' >"$corpus/size" ;;
    # A group, and two common names, of which one must not be another's.
    subjects) printf '\1\14system:nodes\0\5alice\0\16system:node:n1' >"$corpus/names" ;;
    token)
      printf 'Bearer a.b.c' >"$corpus/header"
      printf '\100\4abcd' >"$corpus/splice" ;;
  esac
  log=target/fuzz/$target.log
  {
    target/fuzz/"$triple"/release/$target -max_total_time="$each" -max_len=8192 -print_final_stats=1 \
      -artifact_prefix=target/fuzz/$target- "$corpus" >"$log" 2>&1 || { tail -n 40 "$log" >&2; exit 1; }
    echo "$target: clean; $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs, $(grep -o 'cov: [0-9]*' "$log" | tail -n 1)"
  } &
  running+=("$!")
  # In the order of their starts, so that no failure is missed: they take the same time.
  if [ "${#running[@]}" -ge "$jobs" ]; then
    wait "${running[0]}"
    running=("${running[@]:1}")
  fi
done
for pid in "${running[@]}"; do wait "$pid"; done
