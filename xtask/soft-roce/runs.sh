# The release programs over soft-RoCE, for the guest:
#
#   cargo build --release -p frontend -p accelerator
#   QDL_GUEST_SECONDS=1500 cargo xtask soft-roce -- bash xtask/soft-roce/runs.sh [PART...]
#
# One line for each thing shown, and exit status 1 where one does not hold. What each run wrote lies in /mnt/out/NAME.
#
#   digits      accuracy (the same bytes as over TCP), Server and Offline
#   two_nics    100,000 samples of every size over two NICs with four queue pairs each
#   images      150,528 bytes, Offline and Server, whole and split: counts, and a capture of the packets that confirms them
#   refusals    slots beyond memory, the limit on locked memory, the device
#   faults      pulled cables, a killed accelerator, a rail that comes back, a link that swallows everything
#   impatient   a timeout shorter than the guest is slow: what soft-RoCE makes of it, and that no sample suffers
#   missing     no device, no library: comes last, because it takes them away
. xtask/soft-roce/pair.sh
out=/mnt/out
failed=0
configs=$(mktemp -d)

# holds TEXT COMMAND...: says whether the command succeeds
holds() {
    local text=$1
    shift
    if "$@" >/dev/null 2>&1; then echo "holds: $text"; else echo "FAILS: $text"; failed=1; return 1; fi
}

# stamped FILE: standard input, each line behind the guest's uptime
stamped() {
    local up line
    while IFS= read -r line; do
        read -r up _ </proc/uptime
        echo "$up $line"
    done >"$1"
}

# accelerator NAME CONFIG: starts it and waits until it is ready
accelerator() {
    target/release/accelerator -v --config "$2" >$out/$1.accelerator.log 2>&1 &
    acc=$!
    local try
    for try in $(seq 300); do grep -q ready: $out/$1.accelerator.log && return; sleep 0.1; done
    echo "FAILS: $1: the accelerator is not ready"; failed=1
}

ended() { { kill $acc; wait $acc; } 2>/dev/null; }

# frontend NAME CONFIG ARGUMENTS...: its exit status is in $status
frontend() {
    local name=$1 config=$2
    shift 2
    timeout 240 target/release/frontend --config "$config" --output $out/$name "$@" 2>&1 | stamped $out/$name.log
    status=${PIPESTATUS[0]}
}

# capture NAME INTERFACE: counts the packets until `captured`
capture() {
    python3 xtask/soft-roce/capture.py $2 >$out/$1.$2.packets 2>&1 &
    captures="$captures $!"
    local try
    for try in $(seq 100); do grep -q "counting on" $out/$1.$2.packets && return; sleep 0.1; done
    echo "FAILS: $1: no packets are counted"; failed=1
}

captured() { kill $captures; wait $captures; captures=; }

# packets NAME ADDRESS OPCODE: how many of them that address sent
packets() {
    awk -v from="$2:" -v opcode="$3" '$2 == from {for (i = 3; i < NF; i++) if ($i == opcode) n = $(i + 1) + 0} END {print n + 0}' \
        $out/$1.va.packets
}

# digest PREFIX FRONTEND-NICS ACCELERATOR-NICS [DISTRIBUTION] [COUNT]: a pair of configurations
digest() {
    local sizes="distribution: log_uniform, min_bytes: 1"
    [ "${4:-log_uniform}" = fixed ] && sizes="distribution: fixed"
    cat >$configs/$1-accelerator.yaml <<YAML
node: accelerator
control: {listen: 127.0.0.1:7900}
model: {name: digest, max_input_bytes: 150528}
engine: {kind: digest, max_batch: 64, max_delay_us: 200}
nics:
$3
memory_mib: 512
YAML
    cat >$configs/$1-frontend.yaml <<YAML
node: frontend
model:
  name: digest
  inputs: [{name: input, dtype: u8, shape: [150528], ragged: true}]
  output: {name: output, dtype: u8, shape: [8]}
dataset: {kind: random, $sizes, count: ${5:-2048}, max_bytes: 150528, seed: 7}
verify: digest
accelerators: [{control: 127.0.0.1:7900}]
nics:
$2
loadgen:
  scenario: offline
  settings: {min_duration_ms: 1000, offline_expected_qps: 1000, server_target_latency_ns: 8000000000}
YAML
}

# value FILE KEY [SIDE]: a total of the connections, from summary.json
value() {
    local n=$(sed -n '/"connections_total"/,$p' $out/$1/summary.json | sed -n "/\"${3:-tx}\"/,\$p" | grep -m1 "\"$2\"" | tr -dc 0-9)
    echo ${n:-0}
}

# of FILE KEY: a number of the run itself
of() {
    local n=$(grep -m1 "\"$2\":" $out/$1/summary.json | tr -dc 0-9)
    echo ${n:-none}
}

# hw COUNTER: of all devices together
hw() { cat /sys/class/infiniband/*/ports/1/hw_counters/$1 | awk '{n += $1} END {print n}'; }

# once NAME: every sample completed once, and everything that was counted agrees
once() { [ "$(of $1 issued)" != none ] && [ "$(of $1 issued)" = "$(of $1 answered)" ] && [ "$(of $1 emptied)" = 0 ] && grep -q '"mismatches": \[\]' $out/$1/summary.json; }

# reconciles NAME: at the end nothing is under way, and each completion has its request
reconciles() {
    [ "$(value $1 retired)" = "$(value $1 work_requests)" ] && [ "$(value $1 cqes)" = "$(value $1 signaled)" ] &&
        [ "$(value $1 cqes rx)" = "$(($(value $1 writes rx) + $(value $1 control rx)))" ]
}

# inline NAME: all responses rode in their work requests, says the accelerator
all_inline() {
    sed -n 's/.*; \([0-9]*\) responses in .* requests, \([0-9]*\) of them inline.*/\1 \2/p' $out/$1.accelerator.log |
        awk '{n += $1; i += $2} END {print "       responses", n, "inline", i; exit !(n > 0 && n == i)}'
}

show() { # NAME
    echo "       $1: issued $(of $1 issued), answered $(of $1 answered), sent again $(of $1 redispatched), connections lost $(of $1 lost_connections)"
    echo "       $1: writes $(value $1 writes), work requests $(value $1 work_requests), doorbells $(value $1 doorbells), signaled $(value $1 signaled)," \
        "inline $(value $1 inline), control $(value $1 control), copies $(value $1 copies), retired $(value $1 retired), CQEs out $(value $1 cqes)"
    echo "       $1: CQEs in $(value $1 cqes rx), CQ events $(value $1 cq_events rx), receives $(value $1 receives rx)"
}

digits() {
    accelerator ib configs/soft-roce/accelerator.yaml
    frontend accuracy configs/soft-roce/frontend.yaml --scenario offline --mode accuracy
    holds "digits over ib: the accuracy run ends with 0" [ $status = 0 ]
    frontend server configs/soft-roce/frontend.yaml --scenario server --mode performance
    holds "digits over ib: a valid Server run" [ $status = 0 ]
    grep -hE "Result is|Max latency|99.00 percentile" $out/server/mlperf_log_summary.txt | sed 's/^/       /'
    show server
    frontend offline configs/soft-roce/frontend.yaml --scenario offline --mode performance
    holds "digits over ib: a valid Offline run" [ $status = 0 ]
    show offline
    ended
    accelerator tcp configs/demo/accelerator.yaml
    frontend accuracy-tcp configs/demo/frontend.yaml --scenario offline --mode accuracy
    ended
    holds "digits over ib: the same answers, byte for byte, as over tcp" \
        cmp $out/accuracy/mlperf_log_accuracy.json $out/accuracy-tcp/mlperf_log_accuracy.json
}

# Two NICs with four queue pairs each, at once; sizes of every magnitude.
two_nics() {
    # An emulated machine keeps an acknowledgement waiting for long: 67 ms, the default, would be taken for a loss.
    local four='queue_pairs: 4, slots: 32, timeout: 18'
    digest two "  - {device: rxa, $four}
  - {device: rxb, $four}" "  - {device: rxb, timeout: 18}
  - {device: rxa, timeout: 18}"
    # And a heartbeat, where its own machine is busy: this run is about samples, not about being quick to notice.
    echo 'deadlines: {heartbeat_timeout_ms: 20000}' >>$configs/two-accelerator.yaml
    echo 'deadlines: {heartbeat_timeout_ms: 20000, echo_timeout_ms: 20000, lost_ms: 40000}
warm_up: {deadline_ms: 40000}' >>$configs/two-frontend.yaml
    accelerator two $configs/two-accelerator.yaml
    frontend two $configs/two-frontend.yaml --samples 100000
    holds "100,000 samples, two NICs, four queue pairs each: every digest its own" [ $status = 0 ]
    holds "two: every sample once" once two
    show two
    ended
}

# image NAME SPLIT ARGUMENTS...: one run with images of 150,528 bytes, its packets counted
image() {
    local name=$1 split=$2
    shift 2
    # A batch takes long enough for an echo, which has a work request and a doorbell of its own: not those are to be counted.
    # Nor are the samples that warm connections up.
    echo 'deadlines: {echo_interval_ms: 10000, echo_timeout_ms: 20000, lost_ms: 40000}
warm_up: {budget_ms: 0}' >>$configs/$name-frontend.yaml
    capture $name va
    accelerator $name $configs/$name-accelerator.yaml
    frontend $name $configs/$name-frontend.yaml "$@"
    ended
    sleep 1
    captured
    holds "$name: every digest its own" [ $status = 0 ]
    holds "$name: every sample once" once $name || return
    show $name
    sed 's/^/       /' $out/$name.va.packets
    holds "$name: no copy" [ "$(value $name copies)" = 0 ]
    holds "$name: all responses inline" all_inline $name
    holds "$name: work requests, completions and receives reconcile" reconciles $name
    holds "$name: the slots lie in huge pages" grep -q "slots of 150528 bytes in huge pages" $out/$name.accelerator.log
    local writes=$(value $name writes) requests=$(value $name work_requests) control=$(value $name control)
    local first=$(packets $name 10.9.1.1 WRITE_FIRST) last=$(packets $name 10.9.1.1 WRITE_LAST)
    local with_imm=$(packets $name 10.9.1.1 WRITE_LAST_WITH_IMM) only=$(packets $name 10.9.1.1 WRITE_ONLY_WITH_IMM)
    # Echoes and the goodbye are work requests too.
    if [ $split = never ]; then
        holds "$name: one work request for each sample" [ $((requests - writes - control)) -le 1 ]
        holds "$name: the capture has one WRITE with the immediate for each" [ "$first $last $with_imm" = "$writes 0 $writes" ]
    else
        holds "$name: two work requests for each sample" [ $((requests - 2 * writes - control)) -le 1 ]
        holds "$name: the capture has a plain WRITE and then the immediate for each" \
            [ "$first $last $with_imm" = "$writes $writes 0" -a "$only" = $((requests - writes)) ]
    fi
    return 0
}

# Images, whole and split, in batches and one by one.
images() {
    local split name
    echo 80 >/proc/sys/vm/nr_hugepages
    for split in never 8192; do
        name=offline-$split
        digest $name "  - {device: rxa, queue_pairs: 1, slots: 128, timeout: 18, adaptive_routing: {split_above: $split}}" \
            "  - {device: rxb, timeout: 18}" fixed 64
        # Slow, so that the link keeps up: then answers leave in large batches, as a GPU's do, and what is answered together is
        # replaced together.
        sed -i 's/max_batch: 64, max_delay_us: 200/max_batch: 64, max_delay_us: 200000, delay_us: 700000/' $configs/$name-accelerator.yaml
        image $name $split --samples 2000 || continue
        local requests=$(value $name work_requests)
        holds "$name: at least 16 work requests for each doorbell" [ "$requests" -ge $((16 * $(value $name doorbells))) ]
        holds "$name: at most one in 64 signaled, the goodbye apart" [ "$requests" -ge $((64 * ($(value $name signaled) - 1))) ]
        holds "$name: at most one CQ event for 16 completions" [ "$(value $name cqes rx)" -ge $((16 * $(value $name cq_events rx))) ]
        name=server-$split
        digest $name "  - {device: rxa, queue_pairs: 1, slots: 128, timeout: 18, adaptive_routing: {split_above: $split}}" \
            "  - {device: rxb, timeout: 18}" fixed 64
        image $name $split --scenario server --mode performance --target-qps 40 --duration-s 20 || continue
        holds "$name: at most one in 64 signaled, the goodbye apart" \
            [ "$(value $name work_requests)" -ge $((64 * ($(value $name signaled) - 1))) ]
    done
    echo 0 >/proc/sys/vm/nr_hugepages
}

# refused NAME PATTERN COMMAND...: it ends with status 2, and one line that says why
refused() {
    local name=$1 pattern=$2
    shift 2
    timeout 60 "$@" >$out/$name.log 2>&1
    local status=$?
    holds "$name: refused" [ $status = 2 ]
    holds "$name: in words" grep -qE "$pattern" $out/$name.log
    grep -h "^error" $out/$name.log | head -2 | sed 's/^/       /'
}

refusals() {
    local program="target/release/frontend --scenario offline --output $out/refused"
    digest big "  - {device: rxa, queue_pairs: 4, slots: 8192}" "  - {device: rxb}"
    sed -i 's/memory_mib: 512/memory_mib: 400000/' $configs/big-accelerator.yaml
    accelerator big $configs/big-accelerator.yaml
    refused beyond-memory "slots of all connections take [0-9]+ MiB, and available memory is [0-9]+ MiB: lower" \
        $program --config $configs/big-frontend.yaml
    ended
    digest deep "  - {device: rxa, send_depth: 40000}" "  - {device: rxb}"
    accelerator deep $configs/deep-accelerator.yaml
    refused beyond-the-device "send_depth.*40000 work requests.*max_cqe 32767" $program --config $configs/deep-frontend.yaml
    digest locked "  - {device: rxa, queue_pairs: 4, slots: 1024}" "  - {device: rxb}"
    chmod 666 /dev/infiniband/*
    chmod 777 $out $configs
    chmod 666 $configs/*
    refused beyond-memlock "slots of all connections take [0-9]+ KiB, and the limit on locked memory is 64 KiB" \
        setpriv --reuid 65534 --regid 65534 --clear-groups bash -c "ulimit -l 64; exec $program --config $configs/locked-frontend.yaml"
    ended
}

# during NAME FRONTEND-NICS ACCELERATOR-NICS STATUS ARGUMENTS COMMANDS: 4 s into a run, COMMANDS; the frontend's exit
# status must be the one given.
during() {
    local name=$1 expected=$4 arguments=$5 commands=$6
    digest $name "$2" "$3" log_uniform 512
    # What happens is to happen in mid-run.
    echo 'warm_up: {budget_ms: 0}' >>$configs/$name-frontend.yaml
    accelerator $name $configs/$name-accelerator.yaml
    # LoadGen opens its log once every connection is up, and the guest takes its time until then.
    { for try in $(seq 600); do [ -e $out/$name/mlperf_log_detail.txt ] && break; sleep 0.1; done
        sleep 4; cut -d' ' -f1 /proc/uptime >$out/$name.at; eval "$commands"; } >/dev/null 2>&1 &
    local change=$!
    frontend $name $configs/$name-frontend.yaml $arguments
    wait $change
    holds "$name: exit status $expected" [ $status = $expected ]
    awk -v at="$(cat $out/$name.at)" '/ lost: | gone|silent|could not|error: |again|is back/ && n < 8 {
        printf "       %.2f s later: %s\n", $1 - at, substr($0, index($0, " ") + 1); n++}' $out/$name.log
    if [ $expected = 0 ]; then
        holds "$name: every sample once" once $name
        echo "       $name: issued $(of $name issued), answered $(of $name answered), sent again $(of $name redispatched), connections lost $(of $name lost_connections)"
        grep -hE "Result is|Max latency" $out/$name/mlperf_log_summary.txt | sed 's/^/       /'
    fi
    ended
}

faults() {
    rdma_second
    # 0.27 s and 6 retries: a path that swallows everything is given up after 2 s.
    local q='queue_pairs: 2, slots: 32, timeout: 16' steady='--scenario server --mode performance --target-qps 40 --duration-s 24'
    local ab="  - {device: rxa, $q}" cd="  - {device: rxc, $q}" b='  - {device: rxb, timeout: 16}' d='  - {device: rxd, timeout: 16}'
    during one-of-two-rails-down "$ab
$cd" "$b
$d" 0 '--samples 40000' 'rdma_pull'
    rdma_plug
    rdma_wait rxa
    during the-only-rail-down "$ab" "$b" 3 '--samples 40000' 'rdma_pull'
    rdma_plug
    rdma_wait rxa
    during a-rail-down-and-back "$ab
$cd" "$b
$d" 0 "$steady" 'rdma_pull; sleep 6; rdma_plug'
    holds "a-rail-down-and-back: the rail is used again" grep -q "opened again" $out/a-rail-down-and-back.log
    during a-rail-that-swallows-everything "$ab
$cd" "$b
$d" 0 "$steady" 'tc qdisc add dev va root netem loss 100%; tc qdisc add dev vb root netem loss 100%; sleep 6
        tc qdisc del dev va root; tc qdisc del dev vb root'
    holds "a-rail-that-swallows-everything: the rail is used again" grep -q "opened again" $out/a-rail-that-swallows-everything.log
    during accelerator-killed "$ab" "$b" 3 '--samples 40000' 'kill -9 $acc'
}

# A timeout of 8 ms, in a machine that needs longer for an acknowledgement.
impatient() {
    digest impatient "  - {device: rxa, queue_pairs: 4, slots: 32, timeout: 11}" "  - {device: rxb, timeout: 11}"
    # Connections that are lost in their warm-up would end the run.
    echo 'warm_up: {budget_ms: 0}' >>$configs/impatient-frontend.yaml
    capture impatient va
    local before="duplicates $(hw duplicate_request), out of order $(hw out_of_seq_request), timeouts $(hw completer_retry_err)"
    accelerator impatient $configs/impatient-accelerator.yaml
    frontend impatient $configs/impatient-frontend.yaml --samples 10000
    ended
    captured
    holds "impatient: every digest its own" [ $status = 0 ]
    holds "impatient: every sample once" once impatient
    show impatient
    echo "       the devices before: $before"
    echo "       the devices after: duplicates $(hw duplicate_request), out of order $(hw out_of_seq_request), timeouts $(hw completer_retry_err)"
    grep -h " lost: " $out/impatient.log | sed 's/.* lost: //; s/[0-9][0-9]* samples.*//; s/queue pair [0-9]*/queue pair N/' | sort | uniq -c | sort -rn | head -6 | sed 's/^/       /'
    tail -3 $out/impatient.va.packets | sed 's/^/       /'
}

missing() {
    local device
    for device in /sys/class/infiniband/*; do rdma link delete ${device##*/}; done
    local front="target/release/frontend --scenario offline --output $out/missing --config configs/soft-roce/frontend.yaml"
    local back="target/release/accelerator --config configs/soft-roce/accelerator.yaml"
    refused no-device-frontend "libibverbs is installed but finds no RDMA device" $front
    refused no-device-accelerator "libibverbs is installed but finds no RDMA device" $back
    # The guest's files are its own: the machine that it runs on keeps its library.
    rm -f $(ldconfig -p | sed -n 's/.*libibverbs.so.* => //p')
    refused no-library-frontend "no libibverbs on this machine" $front
    refused no-library-accelerator "no libibverbs on this machine" $back
    accelerator without configs/demo/accelerator.yaml
    frontend without configs/demo/frontend.yaml --scenario offline --mode accuracy
    ended
    holds "without libibverbs: a run over tcp as ever" [ $status = 0 ]
}

for what in ${@:-digits two_nics images refusals faults impatient missing}; do $what; done
rm -rf $configs
exit $failed
