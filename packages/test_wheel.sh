#!/bin/sh
# Installs the wheel, from a folder and without an index, in a bare Debian 12 that has Python alone;
# runs `qdl demo`; removes it; and says how long each took.
#
#     test_wheel.sh DIST [--llm]        DIST: the folder with the wheels, from `cargo xtask dist`
#
# Exit code 77: this machine can not make such a root (root, debootstrap, and an index of packages).
set -eu
dist=$(readlink -f "$1")
llm=${2:-}
[ "$(id -u)" = 0 ] || { echo "left out: not root"; exit 77; }
command -v debootstrap >/dev/null || { echo "left out: no debootstrap"; exit 77; }

work=$(mktemp -d)
root=$work/root
end() {
    umount "$root/proc" "$root/dev/shm" 2>/dev/null || true
    rm -rf --one-file-system "$work"
}
trap end EXIT
trap 'exit 130' INT TERM
inside() { env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb chroot "$root" "$@"; }
seconds() { date +%s.%N; }
lasted() { echo "$1 $2" | awk '{printf "%.1f", $2 - $1}'; }

debootstrap --variant=minbase --include=python3,python3-venv bookworm "$root" >"$work/log" 2>&1 ||
    { tail -3 "$work/log"; echo "left out: debootstrap failed"; exit 77; }
mount -t proc proc "$root/proc"
mkdir -p "$root/dev/shm"
mount -t tmpfs tmpfs "$root/dev/shm"

# What a folder of wheels has to have: ours, and what pip fetches for them where there is an index.
mkdir "$root/wheels"
cp "$dist"/*.whl "$root/wheels"
python3 -m venv "$work/fetch"
"$work/fetch/bin/python" -m pip download --quiet --only-binary=:all: --python-version 3.11 \
    --dest "$root/wheels" onnxruntime==1.31.1 || { echo "left out: no index of packages"; exit 77; }

inside python3 -m venv /venv
find "$root/venv" ! -type d | sort >"$work/before"
what=qdl
[ -z "$llm" ] || what='qdl[llm]'
began=$(seconds)
inside /venv/bin/pip install --quiet --no-index --find-links /wheels "$what"
installed=$(seconds)
# shellcheck disable=SC2086 # no flag, or one
inside /venv/bin/python -c "import qdl" || { echo "FAIL: import qdl"; exit 1; }
inside /venv/bin/qdl demo --output /tmp/demo $llm >"$work/demo" 2>&1 ||
    { cat "$work/demo"; echo "FAIL: the demo"; exit 1; }
tail -24 "$work/demo"
done=$(seconds)
inside /venv/bin/pip uninstall --quiet --yes qdl qdl-demo-llm 2>/dev/null
find "$root/venv" ! -type d | sort >"$work/after"
left=$(comm -13 "$work/before" "$work/after" | grep -i -E 'qdl|frontend|accelerator' || true)
[ -z "$left" ] || { echo "FAIL: left behind: $left"; exit 1; }
install=$(lasted "$began" "$installed")
demo=$(lasted "$installed" "$done")
all=$(lasted "$began" "$done")
echo "PASS wheel: installed in $install s, demo in $demo s, $all s in all; nothing left of it"
