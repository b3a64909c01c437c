//! What is named of several things that were seen at once, and with what advice.

use super::{
    super::{
        GivenValue, LimitRecord, LoadgenRecord, LossRecord, PhaseRecord, SettingOf, SettingRecord,
        SilentOn, limits::Cause,
    },
    tests::*,
    *,
};

fn set(run: &mut RunRecord, name: &str, value: &str) {
    let given = GivenValue {
        value: value.to_owned(),
        from: "default".to_owned(),
    };
    run.settings.push(SettingRecord {
        name: name.to_owned(),
        of: SettingOf::Frontend,
        given,
        ..SettingRecord::default()
    });
}

/// The NIC thread ran for so many seconds of ten, and waited for a core for so many.
fn crowded(mut run: RunRecord, ran: f64, waited: f64) -> RunRecord {
    let node = &mut run.evidence.node;
    node.machine_busy_ticks = node.machine_ticks;
    node.threads[1].ran_us = us(ran);
    node.threads[1].waited_us = us(waited);
    node.nics.worked_us = us((ran + waited).min(SECONDS));
    run
}

#[test]
fn threads_that_wait_for_cores_are_named_before_what_is_late_for_that() {
    let offline = of("Offline", 10_000, [9_000.0, 90.0, 10.0, 300.0, 5.0]);
    let mut submission = missed(healthy(), [5.0, 70_000.0, 100.0, 500.0, 5.0]);
    submission.evidence.node.nics.sleeps = 9_000;
    let mut single = of("SingleStream", 10_000, [5.0, 80.0, 1.0, 20.0, 5.0]);
    single.evidence.node.nics.sleeps = 9_000;
    let mut local = of("SingleStream", 10_000, [5.0, 0.0, 1.0, 40.0, 54.0]);
    local.fabric = "local".to_owned();
    // With cores to spare each is what it looks like.
    let mut busy = offline.clone();
    nics_at_work(&mut busy, 0.98);
    for (what, run, without) in [
        ("NIC thread", busy, Cause::NicThread),
        ("wake-ups, Server", submission, Cause::WakeUps),
        ("wake-ups, SingleStream", single, Cause::WakeUps),
        ("completion", local, Cause::Completion),
    ] {
        let (cause, line) = said(&run);
        assert_eq!(cause, Some(without), "{what}: {line}");
        let (cause, line) = said(&crowded(run, 0.7, 9.1));
        assert_eq!(cause, Some(Cause::Cores), "{what}: {line}");
        assert!(line.contains("our threads waited"), "{line}");
    }
}

#[test]
fn what_a_nic_thread_waits_for_a_core_is_no_work_of_its_own() {
    // Nothing is known of the machine's cores: still it was at work a twelfth of the time.
    let mut run = crowded(of("Offline", 10_000, CALM), 0.7, 3.0);
    run.evidence.node.nics.worked_us = us(0.98 * SECONDS);
    run.evidence.node.machine_ticks = 0;
    assert_ne!(said(&run).0, Some(Cause::NicThread));
    // Where the system says nothing of threads, a turn's time is all that is known.
    run.evidence.node.threads.clear();
    assert_eq!(said(&run).0, Some(Cause::NicThread));
    // One core that is shared while others are idle.
    let mut pinned = crowded(of("Offline", 10_000, CALM), 0.7, 9.1);
    pinned.evidence.node.machine_busy_ticks = 1_000;
    let (cause, line) = said(&pinned);
    assert_eq!(cause, Some(Cause::Cores), "{line}");
    assert!(line.contains("NIC threads waited for one 91 %"), "{line}");
    // An accelerator's threads, on a machine of its own.
    let mut theirs = of("Offline", 10_000, CALM);
    let used = &mut theirs.system.accelerators[0].used;
    used.machine_busy_ticks = used.machine_ticks;
    used.threads[1].waited_us = us(9.0);
    used.nics.worked_us = us(9.8);
    let (cause, line) = said(&theirs);
    assert_eq!(cause, Some(Cause::Cores), "{line}");
    assert!(line.contains("machine of acc"), "{line}");
}

#[test]
fn advice_fits_the_scenario_and_names_nothing_that_stands_so_already() {
    let turn = |run: &RunRecord, cause: Cause| {
        let limits = judge(run);
        let f = limits.findings.iter().find(|f| f.cause == cause);
        f.unwrap_or_else(|| panic!("{cause:?}: {limits:?}"))
            .turn
            .clone()
    };
    // Completion: in SingleStream there is nothing, in Server one, and the trace where it is on.
    let means = [5.0, 50.0, 1.0, 10.0, 5_000.0];
    let mut single = of("SingleStream", 10_000, means);
    set(&mut single, "enable_trace", "false");
    let none = "nothing here: it is LoadGen's own work";
    assert_eq!(turn(&single, Cause::Completion), none);
    single.settings[0].given.value = "true".to_owned();
    assert_eq!(turn(&single, Cause::Completion), "turn `enable_trace` off");
    let mut server = missed(healthy(), means);
    let coalesce = "`server_coalesce_queries`";
    assert_eq!(turn(&server, Cause::Completion), coalesce);
    set(&mut server, "server_coalesce_queries", "true");
    assert_eq!(turn(&server, Cause::Completion), none);

    // Wake-ups: in `event` mode there is no spinning to be longer.
    let mut asleep = of("SingleStream", 10_000, [5.0, 80.0, 1.0, 20.0, 5.0]);
    asleep.evidence.node.nics.sleeps = 9_000;
    set(&mut asleep, "nics[0].completion.mode", "adaptive");
    let said = turn(&asleep, Cause::WakeUps);
    assert!(
        said.starts_with("raise `completion.spin_us` on this node"),
        "{said}"
    );
    asleep.settings[0].given.value = "event".to_owned();
    let said = turn(&asleep, Cause::WakeUps);
    assert!(
        !said.contains("spin_us") && said.contains("adaptive"),
        "{said}"
    );
    asleep.evidence.node.nics.sleeps = 0;
    asleep.system.accelerators[0].used.nics.sleeps = 9_000;
    let said = turn(&asleep, Cause::WakeUps);
    assert!(said.contains("spin_us` on the accelerators"), "{said}");

    // Cores: no pinning of what is pinned, no spinning where nothing spins, no NICs without any.
    let mut cores = crowded(of("Offline", 10_000, CALM), 0.7, 9.1);
    assert!(turn(&cores, Cause::Cores).contains("pin with `cpus`"));
    set(&mut cores, "nics[0].cpus", "3");
    set(&mut cores, "nics[0].completion.mode", "event");
    let said = turn(&cores, Cause::Cores);
    assert!(
        !said.contains("pin") && !said.contains("spinning"),
        "{said}"
    );
    cores.settings.clear();
    cores.fabric = "local".to_owned();
    let said = turn(&cores, Cause::Cores);
    assert!(
        !said.contains("pin") && !said.contains("for the frontend"),
        "{said}"
    );

    // Posting that is left to NIC threads already.
    let mut posting = of("SingleStream", 10_000, [500.0, 50.0, 1.0, 10.0, 5.0]);
    set(
        &mut posting,
        "nics[0].post_from_issue_thread_up_to",
        "16384",
    );
    assert!(turn(&posting, Cause::Posting).starts_with("lower"));
    posting.settings[0].given.value = "0".to_owned();
    assert!(!turn(&posting, Cause::Posting).contains("lower"));

    // `ib` is no advice to who runs it; another accelerator does not make one sample faster.
    let mut nic = of("Offline", 10_000, CALM);
    nics_at_work(&mut nic, 0.95);
    assert!(turn(&nic, Cause::NicThread).contains("`ib`"));
    nic.fabric = "ib".to_owned();
    assert!(!turn(&nic, Cause::NicThread).contains("`ib`"));
    let engine = of("SingleStream", 10_000, [5.0, 80.0, 1.0, 2_000.0, 5.0]);
    assert!(!turn(&engine, Cause::Engine).contains("more accelerators"));
}

/// One that was lost for `why`, where its loss says on what it was silent.
fn lose(run: &mut RunRecord, at: usize, why: &str, silent_on: Option<SilentOn>) {
    let a = &mut run.system.accelerators[at];
    a.lost = Some(why.to_owned());
    run.system.losses.push(LossRecord {
        node: a.node.clone(),
        whole: true,
        why: why.to_owned(),
        silent_on,
        ..LossRecord::default()
    });
}

#[test]
fn a_loss_is_advised_on_by_how_it_was_found_out() {
    let killed = "its program ended or was killed; see its log";
    for (why, silent_on, deadline, log) in [
        (
            "not heard of for 2.00 s",
            Some(SilentOn::Control),
            Some("heartbeat_timeout_ms"),
            true,
        ),
        (
            "no sign of life for 2000 ms",
            Some(SilentOn::Data),
            Some("echo_timeout_ms"),
            true,
        ),
        (killed, None, None, false),
        ("connection reset", None, None, true),
    ] {
        let mut run = healthy();
        lose(&mut run, 0, why, silent_on);
        let limits = judge(&run);
        let turn = &limits.findings[0].turn;
        for key in ["heartbeat_timeout_ms", "echo_timeout_ms"] {
            assert_eq!(turn.contains(key), deadline == Some(key), "{why}: {turn}");
        }
        // "See its log" once is enough.
        assert_eq!(turn.contains("log"), log, "{why}: {turn}");
        assert_eq!(limits.line.matches("log").count(), 1, "{}", limits.line);
    }
}

#[test]
fn all_that_were_lost_are_named_but_not_for_an_accuracy_run() {
    let mut run = healthy();
    let mut second = run.system.accelerators[0].clone();
    second.node = "acc-b".to_owned();
    run.system.accelerators.push(second);
    lose(&mut run, 0, "killed", None);
    lose(&mut run, 1, "killed", None);
    let (_, line) = said(&run);
    assert!(line.contains("acc and acc-b were lost (killed)"), "{line}");
    run.system.accelerators[1].lost = Some("reset".to_owned());
    let (_, line) = said(&run);
    assert!(
        line.contains("acc was lost (killed), and acc-b (reset)"),
        "{line}"
    );
    let third = run.system.accelerators[1].clone();
    run.system.accelerators.push(third);
    assert!(said(&run).1.contains("3 were lost, first acc (killed)"));
    run.mode = Mode::Accuracy;
    let (cause, line) = said(&run);
    assert_eq!(cause, None);
    assert_eq!(line, "nothing is said: an accuracy run is not timed");
}

/// A run that LoadGen calls invalid; `met` of its bound on latency.
fn invalid(met: bool, early: Option<EarlyStopping>) -> RunRecord {
    let limit = |name: &str, at_most, met| LimitRecord {
        name: name.to_owned(),
        unit: LimitUnit::Queries,
        limit: 1_000.0,
        was: Some(193.0),
        at_most,
        met,
        ..LimitRecord::default()
    };
    let mut run = healthy();
    run.valid = Some(false);
    run.loadgen = Some(LoadgenRecord {
        limits: vec![
            limit("p99 latency", true, met),
            limit("queries", false, early.is_some()),
        ],
        early_stopping: early,
        ..LoadgenRecord::default()
    });
    run
}

#[test]
fn a_run_that_is_invalid_for_its_length_alone_is_said_to_be_too_short() {
    let early = EarlyStopping {
        queries: Some(193),
        needs: Some(262),
        ..EarlyStopping::default()
    };
    let (cause, line) = said(&invalid(true, Some(early.clone())));
    assert_eq!(cause, None);
    let begin = "nothing, but the run was too short: early stopping wants 262 queries at least, \
                 there were 193; ";
    assert!(line.starts_with(begin), "{line}");
    assert!(
        line.contains("1,000/s came back of 1,001/s scheduled"),
        "{line}"
    );
    let (_, line) = said(&invalid(true, None));
    assert!(
        line.contains("LoadGen wants queries of 1,000 at least, it was 193"),
        "{line}"
    );
    // What missed its bound was not too short.
    assert!(
        !said(&invalid(false, Some(early.clone())))
            .1
            .contains("too short")
    );
    // Nor what is valid.
    let mut valid = invalid(true, Some(early.clone()));
    valid.valid = Some(true);
    assert!(said(&valid).1.starts_with("nothing: "));
    // With most of the bound used nothing stands out, and it is too short all the same.
    let mut near = invalid(true, Some(early));
    if let Some(l) = &mut near.evidence.loadgen {
        l.bound_us = Some(1_500.0);
    }
    let (_, line) = said(&near);
    assert!(
        line.starts_with("nothing stands out") && line.contains("too short"),
        "{line}"
    );
}

#[test]
fn find_peak_of_one_step_ran_at_one_rate() {
    let step = |rate| PhaseRecord {
        kind: PhaseKind::Step,
        asked_per_s: Some(rate),
        ..PhaseRecord::default()
    };
    let mut run = healthy();
    run.mode = Mode::FindPeak;
    run.phases = vec![step(100.0)];
    assert_eq!(
        said(&run).1,
        "nothing is said: find-peak came no further than its first rate, 100/s; run Server at it \
         to see what limits it"
    );
    run.phases.push(step(200.0));
    assert!(said(&run).1.contains("find-peak runs at many rates"));
}
