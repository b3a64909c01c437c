#!/bin/bash
# Runs slurm.sh with `srun` and `scontrol` of its own, which start processes on loopback addresses.
#
#     test_slurm.sh PROGRAM_FOLDER       the folder has `frontend` and `accelerator`
set -euo pipefail
bin=$(readlink -f "$1")
here=$(dirname "$(readlink -f "$0")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
mkdir fake
cat >fake/scontrol <<'EOF'
#!/bin/sh
echo "$3" | tr , '\n'
EOF
cat >fake/srun <<'EOF'
#!/bin/sh
while case $1 in --*) true ;; *) false ;; esac; do
    case $1 in --nodelist=*) export HOST="${1#*=}" ;; esac
    shift
done
exec "$@"
EOF
cat >fake/ip <<'EOF'
#!/bin/sh
[ "$*" = "-4 -oneline address show dev ib0" ] && echo "2: ib0    inet 127.0.0.${HOST#n}/8 scope host ib0"
EOF
chmod +x fake/*
cat >frontend.yaml <<'EOF'
model:
  name: zeros
  inputs: [{name: bytes, dtype: u8, shape: [1024]}]
  output: {name: class, dtype: i64, shape: [1]}
dataset: {kind: random, count: 1024}
nics: [{address: "@ADDRESS@"}]
loadgen:
  scenario: server
  settings: {server_target_qps: 500, server_target_latency_ns: 500000000, min_duration_ms: 2000}
EOF
cat >accelerator.yaml <<'EOF'
model:
  name: zeros
  inputs: [{name: bytes, dtype: u8, shape: [1024]}]
  output: {name: class, dtype: i64, shape: [1]}
engine: {kind: "null", max_batch: 64}
nics: [{listen: "@ADDRESS@:7410"}]
memory_mib: 256
EOF
export PATH=$work/fake:$PATH QDL_BIN=$bin SLURM_JOB_ID=1
export SLURM_JOB_NODELIST=127.0.0.1,127.0.0.2,127.0.0.3
bash "$here/slurm.sh" frontend.yaml accelerator.yaml >log 2>&1 || { cat log; exit 1; }
fail() { cat log; echo "$1"; exit 1; }
grep -q 'Result is : VALID' qdl-1/run/mlperf_log_summary.txt || fail "the run is not VALID"
for host in 127.0.0.2 127.0.0.3; do
    grep -q "^ready: node $host" "qdl-1/$host.log" || fail "no accelerator on $host"
    grep -q "$host" qdl-1/run/summary.json || fail "summary.json does not name $host"
done
[ ! -e qdl-1/token ] || fail "the token is left"
! pgrep -f -- "--config $work/" || fail "a process is left"

# Nodes whose names have no address, and an interface that has.
export SLURM_JOB_NODELIST=n1,n2
SLURM_JOB_ID=3 QDL_INTERFACE=ib0 bash "$here/slurm.sh" frontend.yaml accelerator.yaml >log 2>&1 ||
    fail "the run over ib0 is not VALID"
grep -q 'control: {listen: "127.0.0.2:7400"}' qdl-3/n2.yaml || fail "not the address of ib0"
rc=0
SLURM_JOB_ID=4 QDL_INTERFACE=ib9 bash "$here/slurm.sh" frontend.yaml accelerator.yaml >log 2>&1 || rc=$?
[ "$rc" = 2 ] || fail "exit code $rc without an address"
grep -q 'n1 has no IPv4 address on ib9' log || fail "no interface is named"
export SLURM_JOB_NODELIST=127.0.0.1,127.0.0.2,127.0.0.3

# An accelerator that does not come up ends the job, and names its log.
sed -i 's/kind: "null"/kind: onnx/' accelerator.yaml
rc=0
SLURM_JOB_ID=2 bash "$here/slurm.sh" frontend.yaml accelerator.yaml >log 2>&1 || rc=$?
[ "$rc" = 2 ] || fail "exit code $rc"
grep -q 'is not ready: .*/qdl-2/127.0.0.2.log' log || fail "no log is named"
