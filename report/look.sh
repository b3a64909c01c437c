#!/bin/bash
# A page in headless Chromium, by hand: `bash report/look.sh PAGE OUT` writes OUT-1280-light.png and so on, and OUT.pdf, and fails where
# the page said anything on the console. No name resolves meanwhile.
set -u
page=$(realpath "$1") out=$2
profile=$(mktemp -d)
trap 'rm -rf "$profile"' EXIT
said=0
browse() {
    timeout 120 chromium --headless=new --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$profile" \
        --host-resolver-rules='MAP * ~NOTFOUND' --virtual-time-budget=3000 --enable-logging=stderr "$@" "file://$page" 2>&1 |
        grep CONSOLE && said=1
}
for width in 1280 400; do
    # 0 is dark, 1 is light.
    for scheme in 0 1; do
        name=$out-$width-$([ $scheme = 0 ] && echo dark || echo light).png
        browse --blink-settings=preferredColorScheme=$scheme --window-size=$width,"${HEIGHT:-7000}" --screenshot="$name"
    done
done
browse --no-pdf-header-footer --print-to-pdf="$out.pdf"
exit $said
