#!/bin/sh
# Writes the Debian packages qdl-frontend and qdl-accelerator. They can share a machine.
#
#     deb.sh PROGRAM_FOLDER OUT     PROGRAM_FOLDER has the program `qdl`, stripped
#
# The first has `qdl` under two names and the demo's files, the second the accelerator as a service.
# DEB_MAINTAINER, for packages that you publish: your name and address.
set -eu
program=$(readlink -f "$1")/qdl
mkdir -p "$2"
out=$(readlink -f "$2")
here=$(dirname "$(readlink -f "$0")")
root=$(dirname "$here")
# A fixed time: the same files give the same package.
export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-1577836800}"
maintainer=${DEB_MAINTAINER:-QDL <qdl@localhost.localdomain>}
umask 022
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
version=$("$program" --version | cut -d ' ' -f 2)
arch=$(dpkg --print-architecture)
python3 -B "$here/licenses.py" >"$work/copyright"

# pages FOLDER NAME: the manual pages and shell completions of the program under this name
pages() {
    man=$1/usr/share/man/man1
    bash=$1/usr/share/bash-completion/completions
    zsh=$1/usr/share/zsh/vendor-completions
    fish=$1/usr/share/fish/vendor_completions.d
    mkdir -p "$man" "$bash" "$zsh" "$fish" "$work/names"
    ln -sf "$program" "$work/names/$2"
    "$work/names/$2" man --output "$man" >"$work/log"
    gzip --force --no-name --best "$man"/*.1
    "$work/names/$2" completions bash >"$bash/$2"
    "$work/names/$2" completions zsh >"$zsh/_$2"
    "$work/names/$2" completions fish >"$fish/$2.fish"
}

# pack NAME SUMMARY TEXT SUGGESTED: fields, checksums, archive
pack() {
    folder=$work/$1
    mkdir -p "$folder/DEBIAN" "$folder/usr/share/doc/$1"
    cp "$work/copyright" "$folder/usr/share/doc/$1/copyright"
    printf '%s (%s) stable; urgency=low\n\n  * See the repository.\n\n -- %s  %s\n' \
        "$1" "$version" "$maintainer" "$(date -R -u -d "@$SOURCE_DATE_EPOCH")" |
        gzip --no-name --best >"$folder/usr/share/doc/$1/changelog.gz"
    (cd "$folder" && find usr -type f -exec md5sum {} + >DEBIAN/md5sums)
    cat >"$folder/DEBIAN/control" <<EOF
Package: $1
Version: $version
Architecture: $arch
Maintainer: $maintainer
Section: science
Priority: optional
Installed-Size: $(du -sk --exclude=DEBIAN "$folder" | cut -f 1)
Depends: libc6 (>= 2.34), libgcc-s1
Suggests: libibverbs1, ibverbs-providers, libfabric1, $4
Description: $2
 $3
EOF
    dpkg-deb --root-owner-group -Zxz --build "$folder" "$out" >"$work/log"
    ls -sh "$out/$1_${version}_$arch.deb"
}

folder=$work/qdl-frontend
mkdir -p "$folder/usr/bin" "$folder/usr/share/qdl"
cp "$program" "$folder/usr/bin/qdl"
ln -s qdl "$folder/usr/bin/frontend"
pages "$folder" qdl
pages "$folder" frontend
(cd "$root" && cp -L --parents configs/demo/*.yaml configs/llm/*.yaml .deps/models/digits.*[!e] \
    models/capitals.py models/bpe.py models/gguf.py models/tokens_file.py "$folder/usr/share/qdl")
pack qdl-frontend "MLPerf LoadGen over a network: the frontend" \
    "Runs LoadGen on this node, which sends its samples to accelerators." \
    qdl-accelerator

folder=$work/qdl-accelerator
unit=usr/lib/systemd/system/qdl-accelerator.service
mkdir -p "$folder/usr/bin" "$folder/etc/qdl" "$folder/DEBIAN" "$(dirname "$folder/$unit")"
cp "$program" "$folder/usr/bin/accelerator"
cp "$here/deb/accelerator.yaml" "$folder/etc/qdl/accelerator.yaml"
cp "$here/deb/qdl-accelerator.service" "$folder/$unit"
echo /etc/qdl/accelerator.yaml >"$folder/DEBIAN/conffiles"
for script in postinst prerm postrm; do
    install -m 755 "$here/deb/$script" "$folder/DEBIAN/$script"
done
pages "$folder" accelerator
pack qdl-accelerator "MLPerf LoadGen over a network: an accelerator node" \
    "Answers a frontend's samples, as a service or by hand." \
    qdl-frontend
