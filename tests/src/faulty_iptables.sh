#!/bin/sh
# One of the iptables programs, which fails as the real one does where the files in its directory say so: see faulty_iptables.rs.
dir=@DIR@
name=${0##*/}
real=$dir/bin/$name
case $name in
*-restore) ;;
*) exec "$real" "$@" ;;
esac
if grep -qx -- "$name" "$dir/failing" 2>/dev/null; then
    echo "it does not work" >&2
    exit 1
fi
echo "$name" >>"$dir/runs"
while grep -qx -- "$name" "$dir/hanging" 2>/dev/null; do sleep 0.1; done
text=$(mktemp -p "$dir")
trap 'rm -f "$text"' EXIT
cat >"$text"

# Commits the first tables, as many as asked, before anything fails: the program reads on after each COMMIT.
commit() {
    [ "$1" = 0 ] && return
    awk -v last="$1" '{ print } $0 == "COMMIT" && ++done == last { exit }' "$text" | "$real" -w 5 --noflush --counters
}

if [ -e "$dir/refused" ]; then
    line=$(grep -nF -f "$dir/refused" "$text" | grep -v ':-X\|::' | head -n 1 | cut -d: -f1)
    if [ -n "$line" ]; then
        commit "$(head -n $((line - 1)) "$text" | grep -cx COMMIT)"
        # A kernel that does not say which rule it was has refused the COMMIT.
        if [ -e "$dir/unnamed" ]; then line=$(grep -nx COMMIT "$text" | tail -n 1 | cut -d: -f1); fi
        echo "$name: line $line failed" >&2
        exit 1
    fi
fi
if [ -e "$dir/faults" ]; then
    number=$(flock "$dir/lock" sh -c 'n=$(cat "$0/count"); echo $((n + 1)) >"$0/count"; echo "$n"' "$dir")
    fault=$(awk -v n="$number" '$1 == n || $1 == "*" { print $2, $3; exit }' "$dir/faults")
    if [ -n "$fault" ]; then
        kind=${fault% *}
        tables=${fault#* }
        echo "$number $fault" >>"$dir/struck"
        commit "$tables"
        case $kind in
        refused)
            line=$(grep -nx COMMIT "$text" | sed -n "$((tables + 1))p" | cut -d: -f1)
            echo "$name: line ${line:-1} failed" >&2
            exit 1
            ;;
        locked)
            echo "Another app is currently holding the xtables lock. Stopped waiting after 5s." >&2
            exit 4
            ;;
        killed) kill -9 $$ ;;
        esac
    fi
fi
"$real" "$@" <"$text"
