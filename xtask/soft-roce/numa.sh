# Where threads run and memory lies, read back from the kernel while runs go on, in a guest with two NUMA nodes
# (`cargo xtask soft-roce --numa`): cores 0-1 and rxc, rxd on node 0; cores 2-3 and rxa, rxb on node 1.
#
#   numa.sh FOLDER      FOLDER has the programs, target/debug say
#
# One line for each thing shown, and exit status 1 where one does not hold. What each run wrote lies in /mnt/out/NAME.
programs=$1
out=/mnt/out
failed=0
SAMPLES=96
BYTES=100000
SLOTS=16
# Pages that hold all samples, and all request slots of two connections.
sample_pages=$((SAMPLES * BYTES / 4096))
slot_pages=$((2 * SLOTS * BYTES / 4096))

# holds TEXT COMMAND...: says whether the command succeeds
holds() {
    local text=$1
    shift
    local why
    if why=$("$@" 2>&1); then echo "holds: $text"; else echo "FAILS: $text${why:+: $why}"; failed=1; fi
}

# look: what the kernel says of both programs at this moment. They stand still meanwhile, or a slow guest would see the end.
look() {
    local who pid
    kill -STOP $front $acc
    for who in front acc; do
        pid=${!who}
        cat /proc/$pid/numa_maps >$out/$who.maps
        cat /proc/$pid/task/*/status >$out/$who.status
    done
    kill -CONT $front $acc
}

# cores PROGRAM THREAD: where the threads may run whose names begin so, each core list once
cores() {
    awk -v name="$2" '$1 == "Name:" {ours = index($2, name) == 1}
        ours && $1 == "Cpus_allowed_list:" && !seen[$2]++ {printf "%s%s", between, $2; between = " "}' $out/$1.status
}

# bound PROGRAM POLICY NODE: pages on this node of memory with this policy
bound() { pages "$2" "$3" $out/$1.maps; }
pages() {
    awk -v policy="$1" -v node="N$2=" '$2 == policy {
        for (i = 3; i <= NF; i++) if (index($i, node) == 1) n += substr($i, length(node) + 1)} END {print n + 0}' "$3"
}

# same, least: what was found, and what it is to be
same() { [ "$1" = "$2" ] || { echo "it is '$1', not '$2'"; return 1; }; }
least() { [ "$1" -ge "$2" ] || { echo "it is '$1', less than '$2'"; return 1; }; }

# configured NAME FRONTEND-NICS ACCELERATOR-NICS: a pair of configurations
configured() {
    mkdir -p $out/$1
    cat >$out/$1/accelerator.yaml <<YAML
node: accelerator
control: {listen: 127.0.0.1:7900}
model: {name: digest, max_input_bytes: $BYTES}
engine: {kind: digest, threads: 2, max_batch: 8, max_delay_us: 200, delay_us: 1000}
nics:
$3
memory_mib: 64
auth: none
deadlines: {heartbeat_timeout_ms: 20000}
YAML
    cat >$out/$1/frontend.yaml <<YAML
node: frontend
model:
  name: digest
  inputs: [{name: input, dtype: u8, shape: [$BYTES], ragged: true}]
  output: {name: output, dtype: u8, shape: [8]}
dataset: {kind: random, distribution: fixed, count: $SAMPLES, max_bytes: $BYTES, seed: 7}
verify: digest
accelerators: [{control: 127.0.0.1:7900}]
nics:
$2
auth: none
deadlines: {heartbeat_timeout_ms: 20000, echo_timeout_ms: 20000, lost_ms: 40000}
warm_up: {budget_ms: 0}
loadgen:
  settings: {server_target_qps: 20, server_target_latency_ns: 8000000000, min_query_count: 1, min_duration_ms: 8000}
YAML
}

# began NAME FRONTEND-NICS ACCELERATOR-NICS POLICY NODE: starts a run and waits until it is under way, its samples in
# memory with this policy on this node; $front and $acc are the two programs
began() {
    configured "$@"
    $programs/accelerator -v --once --config $out/$1/accelerator.yaml >$out/$1/accelerator.log 2>&1 &
    acc=$!
    local try
    for try in $(seq 300); do grep -q ready: $out/$1/accelerator.log && break; sleep 0.1; done
    $programs/frontend --config $out/$1/frontend.yaml --scenario server --mode performance \
        --output $out/$1/run >$out/$1/frontend.log 2>&1 &
    front=$!
    for try in $(seq 100); do [ -e $out/$1/run/mlperf_log_detail.txt ] && break; sleep 0.1; done
    # Samples are loaded before the clock starts, and answered from then on.
    for try in $(seq 50); do [ "$(pages $4 $5 /proc/$front/numa_maps)" -ge $((sample_pages / 2 - 1)) ] && break; sleep 0.1; done
    look
}

# ended NAME: the run was a good one
ended() {
    local status
    wait $front
    status=$?
    # LoadGen finds so short a run invalid, which is status 1; a wrong answer or a count that is off is not.
    holds "$1: every sample is answered, with its own digest" least 1 $status
    wait $acc
}

# says NAME PATTERN: what the frontend's summary says of places, in one line
says() { tr -d ' \n' <$out/$1/run/summary.json | sed 's/.*"places":{//; s/"ledger".*//' | grep -q "$2"; }

# all_on NAME NODE CORES [NIC-CORES]: what was seen while the run went on, then what the summaries say
all_on() {
    local name=$1 node=$2 cores=$3 nic=${4:-$3} other=$((1 - $2)) who
    holds "$name: the frontend's NIC thread runs on cores $nic" same "$(cores front nic-)" $nic
    holds "$name: the accelerator's NIC thread and its helper run on cores $nic" same "$(cores acc nic-)" $nic
    holds "$name: engine threads run on cores $cores" same "$(cores acc engine-)" $cores
    holds "$name: samples and responses lie on node $node" least "$(bound front prefer:$node $node)" $sample_pages
    holds "$name: slots and responses lie on node $node" least "$(bound acc prefer:$node $node)" $slot_pages
    for who in front acc; do
        holds "$name: none of $who's lies on node $other" same "$(bound $who prefer:$node $other)" 0
    done
    ended $name
    holds "$name: the summary says so" says $name "\"nodes\":2,\"nics\":\[{.*\"slots\":\[$node\]}\],\"samples\":\[$node\]"
    holds "$name: for people, too" grep -q "nics\[0\] .*: node $node; thread on cores $nic, slots on node $node" $out/$name/frontend.log
    holds "$name: the accelerator's says so" grep -q "nics\[0\] .*: node $node; thread on cores $nic, slots on node $node" $out/$name/accelerator.log
}

ib='queue_pairs: 2, slots: 16, timeout: 18'
tcp='connections: 2, slots: 16'
for numa in auto 0; do
    node=1 cores=2-3
    [ $numa = 0 ] && node=0 cores=0-1
    began ib-$numa "  - {device: rxa, $ib, numa: $numa}" "  - {device: rxb, timeout: 18, numa: $numa}" prefer:$node $node
    all_on ib-$numa $node $cores
    began tcp-$numa "  - {address: 10.9.1.1, $tcp, numa: $numa}" "  - {listen: 10.9.1.2:7901, numa: $numa}" prefer:$node $node
    all_on tcp-$numa $node $cores
done
# `cpus` is for the NIC thread alone: memory and engine stay on the NIC's node.
began cpus "  - {device: rxa, $ib, cpus: [1]}" "  - {device: rxb, timeout: 18, cpus: [1]}" prefer:1 1
all_on cpus 1 2-3 1
# Two NICs on two nodes, each with its own; what both use is on both.
began both "  - {device: rxa, $ib}
  - {address: 10.9.2.1, $tcp}" "  - {device: rxb, timeout: 18}
  - {listen: 10.9.2.2:7902}" interleave:0-1 1
for who in front acc; do
    holds "both: $who: the thread of the NIC on node 1 runs there" same "$(cores $who nic-0)" 2-3
    holds "both: $who: the thread of the NIC on node 0 runs there" same "$(cores $who nic-1)" 0-1
    for node in 0 1; do
        holds "both: $who: memory that belongs on node $node lies there" same "$(bound $who prefer:$node $((1 - node)))" 0
    done
done
for node in 0 1; do
    holds "both: slots of the NIC on node $node" least "$(bound acc prefer:$node $node)" $slot_pages
    holds "both: half of the samples lie on node $node" least "$(bound front interleave:0-1 $node)" $((sample_pages * 45 / 100))
done
holds "both: the engine runs on both nodes" same "$(cores acc engine-)" 0-3
ended both
holds "both: the summary says so" says both '"slots":\[1\]},.*"slots":\[0\]}\],"samples":\[0,1\]'
[ $failed = 0 ] && rm -rf ${out:?}/{ib,tcp}-{auto,0} ${out:?}/{cpus,both} ${out:?}/{front,acc}.*
exit $failed
