# Removes the testbed of a test that was killed: waits for the end of its input, whose other end only the test has open. A
# test that has cleaned up itself writes a line before.
name=$1 dir=$2
read -r word
[ "$word" = over ] && exit 0
case ${dir##*/} in windlass-test-*) ;; *) exit 1 ;; esac

children() { cat "/proc/$1/task/"*/children 2>/dev/null; }

# Everything in the two network namespaces, and what shims have started elsewhere. Again until nobody is left: somebody may
# have been starting something.
for _ in $(seq 50); do
    left=
    for space in "$name" "$name-out"; do
        for pid in $(ip netns pids "$space" 2>/dev/null); do left="$left $(children "$pid") $pid"; done
    done
    [ -z "$left" ] && break
    # shellcheck disable=SC2086
    kill -KILL $left 2>/dev/null
    sleep 0.1
done

# Pods' mounts and Docker's, the innermost first.
cut -d ' ' -f 5 /proc/self/mountinfo | grep "^$dir/" | sort -r | while read -r at; do umount -l "$at" 2>/dev/null; done
for container in "$dir"/docker/containers/*; do
    find /sys/fs/cgroup -depth -type d -path "*${container##*/}*" -exec rmdir {} + 2>/dev/null
done
ip netns delete "$name" 2>/dev/null
ip netns delete "$name-out" 2>/dev/null
rm -rf --one-file-system "$dir"
