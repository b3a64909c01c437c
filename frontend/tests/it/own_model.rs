//! From a model file and samples to a VALID run: `qdl init`, `--check` of both programs, and the
//! commands that `init` prints. Models with several inputs and outputs, and their accuracy.

use std::{
    fs,
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use crate::common::{
    Running, TestFolder, accelerator, accelerator_in, accelerator_program, assert_has, fetched,
    free_ports, netns::Star, program_beside, qdl_command, repository, run,
};
use assert_cmd::assert::OutputAssertExt;
use engines::config::load_accelerator;
use serde_json::Value;

fn said(mut command: Command) -> String {
    let output = command.assert().success().get_output().clone();
    String::from_utf8(output.stdout).expect("text")
}

/// Checks for exit code 2 and no output; returns the only line of the error.
fn refused(command: Command) -> String {
    let text = crate::common::refused(command);
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

/// Makes the model and data as `docs/own-model.md` describes.
fn made(place: &TestFolder, arguments: &[&str]) -> PathBuf {
    let folder = place.path("data");
    let mut script = Command::new(fetched("venv/bin/python"));
    script
        .arg(repository().join("models/own_model.py"))
        .arg("make")
        .args(arguments)
        .arg(&folder)
        .env("PYTHONDONTWRITEBYTECODE", "1");
    said(script);
    folder
}

fn init(folder: &Path, control: &str) -> Command {
    let mut command = qdl_command();
    in_folder(&mut command, folder, control);
    command
}

fn in_folder(command: &mut Command, folder: &Path, control: &str) {
    command.args(["init", "--accelerator", control]);
    command.arg("--model").arg(folder.join("points.onnx"));
    command
        .arg("--samples")
        .arg(folder.join("points.samples.f32"));
    command.arg("--output").arg(folder);
}

/// Returns the commands in the output of `init`: the lines that begin with two blanks.
fn commands(printed: &str) -> Vec<Vec<String>> {
    let indented = printed.lines().filter_map(|l| l.strip_prefix("  "));
    let words = |l: &str| l.split_whitespace().map(str::to_owned).collect();
    indented
        .filter(|l| !l.starts_with(' '))
        .map(words)
        .collect()
}

#[test]
fn the_commands_that_init_prints_end_in_a_valid_run_as_they_are() {
    let place = TestFolder::new();
    let folder = made(&place, &[]);
    let [control] = free_ports();
    let mut command = init(&folder, &format!("127.0.0.1:{control}"));
    command
        .arg("--labels")
        .arg(folder.join("points.labels.i64"));
    let printed = said(command);
    assert_has(&printed, &["points: point: f32[16] -> class: i64[1]"]);
    assert!(printed.contains("samples  1000\n"), "{printed}");
    let commands = commands(&printed);
    let [serve, check, measure] = &commands[..] else {
        panic!("three commands are expected: {printed}");
    };
    assert_eq!(Path::new(&serve[0]), accelerator_program());
    let config = PathBuf::from(&serve[2]);
    let command = |words: &[String]| {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).current_dir(place.path(""));
        command
    };
    let page = said(command(check));
    assert_has(&page, &["SingleStream", "1000 samples of 64 bytes"]);
    assert_has(&page, &["one for each sample", "2048 slots"]);
    assert!(
        !place.path("results").exists(),
        "--check leaves nothing behind"
    );

    let _accelerator = accelerator(&place, &config);
    let ended = run(&place, command(measure)).with_code(0);
    assert!(ended.stdout.starts_with("VALID"), "{}", ended.stdout);
    let mut accuracy = command(measure);
    accuracy.args(["--mode", "accuracy"]);
    let ended = run(&place, accuracy).with_code(0);
    assert_has(&ended.stdout, &["accuracy     90.000 %"]);
}

#[test]
fn several_inputs_and_outputs_fixed_batches_and_arrays_need_nothing_else() {
    let place = TestFolder::new();
    let arrays = "import numpy, sys\n\
        d = sys.argv[1]\n\
        x = numpy.fromfile(d + '/points.samples.f32', '<f4').reshape(1000, 17)\n\
        l = numpy.fromfile(d + '/points.labels.i64', '<i8').astype('<i4')\n\
        numpy.savez(d + '/both.npz', point=x[:, :16], shift=x[:, 16:], labels=l)\n";
    for (arguments, data) in [
        (&["--two"][..], "both.npz"),
        (&["--two", "--batch", "8"], "points.samples.f32"),
    ] {
        let folder = made(&place, arguments);
        let mut python = Command::new(fetched("venv/bin/python"));
        python.args(["-c", arrays]).arg(&folder);
        said(python);
        let labels = if data == "both.npz" {
            data
        } else {
            "points.labels.i64"
        };
        let [control] = free_ports();
        let mut command = qdl_command();
        command.args(["init", "--force", "--class", "scores", "--accelerator"]);
        command.arg(format!("127.0.0.1:{control}"));
        command.arg("--output").arg(&folder);
        command.arg("--model").arg(folder.join("points.onnx"));
        command.arg("--samples").arg(folder.join(data));
        command.arg("--labels").arg(folder.join(labels));
        let printed = said(command);
        assert_has(
            &printed,
            &["scores: f32[4], class: i64[1]\n\
                 class    largest of scores (4 values), as --class says\nsamples  1000"],
        );
        let _accelerator = accelerator(&place, &folder.join("accelerator.yaml"));
        for (mode, word) in [
            ("performance", "VALID"),
            ("accuracy", "accuracy     90.000 %"),
        ] {
            let config = folder.join("frontend.yaml");
            let arguments = ["--mode", mode, "--duration-s", "1"];
            let ended = place.run(&config, "out", &arguments).with_code(0);
            assert!(ended.stdout.contains(word), "{data}: {}", ended.stdout);
        }
    }
}

#[test]
fn init_writes_nothing_that_would_not_run_and_overwrites_nothing() {
    let place = TestFolder::new();
    let folder = made(&place, &[]);
    let left = || {
        let names = fs::read_dir(&folder).expect("a folder");
        let mut names: Vec<_> = names.map(|f| f.expect("a file").file_name()).collect();
        names.sort();
        names
    };
    let before = left();
    let with = |flag: &str, value: &Path| {
        let mut command = qdl_command();
        command.arg("init");
        let given = [
            ("--model", "points.onnx"),
            ("--samples", "points.samples.f32"),
        ];
        for (name, file) in given.iter().filter(|(name, _)| *name != flag) {
            command.arg(name).arg(folder.join(file));
        }
        command.arg(flag).arg(value).arg("--output").arg(&folder);
        refused(command)
    };
    let short = place.write("short.f32", [0; 100]);
    let none = place.path("none");
    for (flag, value, parts) in [
        ("--samples", &*short, ["short.f32", "64 bytes"]),
        ("--samples", &none, ["--samples", "No such file"]),
        (
            "--samples",
            &folder,
            ["it is a folder", "own_model.py pack"],
        ),
        ("--model", &short, ["short.f32", "not a model"]),
        ("--labels", &short, ["short.f32", "labels"]),
        (
            "--class",
            Path::new("boxes"),
            ["--class boxes", "outputs are class"],
        ),
        (
            "--accelerator",
            Path::new("localhost"),
            ["--accelerator localhost", "HOST:PORT"],
        ),
    ] {
        assert_has(&with(flag, value), &parts);
        assert_eq!(left(), before, "{flag}");
    }
    said(init(&folder, "127.0.0.1:7400"));
    let ours = folder.join("frontend.yaml");
    fs::write(&ours, "mine").expect("written");
    let text = refused(init(&folder, "127.0.0.1:7400"));
    assert!(text.contains("frontend.yaml is there: --force"), "{text}");
    assert_eq!(fs::read_to_string(&ours).expect("kept"), "mine");
    let mut by_force = init(&folder, "127.0.0.1:7400");
    by_force.arg("--force");
    said(by_force);
    assert_ne!(fs::read_to_string(&ours).expect("new"), "mine");
}

#[test]
fn a_check_of_a_frontend_asks_nobody_and_finds_what_a_run_would() {
    let place = TestFolder::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("a socket");
    let port = listener.local_addr().expect("bound").port();
    let config = place.digest_frontend(&[port], "");
    let check = |arguments: &[&str]| {
        let all = [&["--check", "--scenario", "offline"], arguments].concat();
        place.frontend(&config, "out", &all)
    };
    let page = said(check(&["--target-qps", "1000"]));
    assert_has(
        &page,
        &[
            "Offline, performance",
            "offline_expected_qps 1000",
            "1100/s or less",
            "500 samples of up to 20000 bytes",
            &format!("127.0.0.1:{port} (not asked)"),
            "3 connections to each accelerator, 2048 slots each",
            "each response is compared",
            "1 of NICs",
        ],
    );
    assert!(page.lines().all(|l| l.len() <= 100), "{page}");
    assert!(listener.accept().is_err(), "a connection arrived");
    assert!(!place.path("out").exists(), "nothing is left behind");
    assert_eq!(said(check(&["--quiet"])), "");
    let page = said(check(&["--local"]));
    assert_has(&page, &["--local: digest, batches of up to 8"]);

    let text = refused(check(&["--set", "min_qery_count=3"]));
    assert!(text.contains("min_query_count"), "{text}");
    let away = place.digest_frontend(&[port], "nics: [{address: 192.0.2.77}]\nauth: none\n");
    let text = refused(place.frontend(&away, "out", &["--check", "--scenario", "server"]));
    assert!(text.contains("nics[0]: 192.0.2.77 is no address"), "{text}");
    let none = "engine: {kind: onnx, library: absent.so}\nmodel_file: none.onnx\n";
    let none = place.digest_frontend(&[port], none);
    let local = ["--check", "--local", "--scenario", "server"];
    let text = refused(place.frontend(&none, "out", &local));
    assert!(text.contains("none.onnx"), "{text}");
}

#[test]
fn a_check_of_an_accelerator_opens_all_of_it_and_serves_no_frontend() {
    let place = TestFolder::new();
    let [control] = free_ports();
    let config = place.digest_accelerator("acc", control, "");
    let check = || {
        let mut command = Command::new(accelerator_program());
        command.arg("--config").arg(&config).arg("--check");
        command
    };
    let page = said(check());
    let parts = [
        "input: u8[20000] ragged -> output: u8[8]",
        &format!("127.0.0.1:{control}"),
        "up to 4.0 GiB for slots (memory_mib)",
        "none of the engine, which answers on them",
    ];
    assert_has(&page, &parts);
    assert!(
        !page.contains("ready:") && page.lines().all(|l| l.len() <= 100),
        "{page}"
    );
    let _taken = TcpListener::bind(("127.0.0.1", control)).expect("free again");
    let text = refused(check());
    assert!(text.contains("in use"), "{text}");
}

#[test]
#[ignore = "takes network namespaces, and root to make them: a step of `cargo xtask test`"]
fn over_a_cable_init_makes_a_token_and_the_run_is_valid() {
    let place = TestFolder::new();
    let folder = made(&place, &[]);
    let star = Star::new();
    let program = Path::new(env!("CARGO_BIN_EXE_frontend"));
    let mut command = star.hub.command(program_beside("qdl"));
    in_folder(&mut command, &folder, "10.97.0.2:7400");
    let printed = said(command);
    assert_has(
        &printed,
        &["# on 10.97.0.2, beside copies of points.onnx and token"],
    );
    let text = fs::read_to_string(folder.join("frontend.yaml")).expect("written");
    assert!(
        text.contains("address: \"10.97.0.1\""),
        "the way there: {text}"
    );

    let far = place.path("far");
    fs::create_dir(&far).expect("a folder");
    for file in ["accelerator.yaml", "points.onnx", "token"] {
        fs::copy(folder.join(file), far.join(file)).expect("copied");
    }
    let _accelerator = accelerator_in(&star.leaves[0], &place, &far.join("accelerator.yaml"));
    let mut command = star.hub.command(program);
    command.arg("--config").arg(folder.join("frontend.yaml"));
    command.arg("--output").arg(place.path("out"));
    run(&place, command).with_code(0);
    assert_eq!(place.summary("out")["valid"], true);
}

const ACCURACY: [&str; 4] = ["--scenario", "offline", "--mode", "accuracy"];
const SAMPLES: usize = 60;
/// Tensors of the detector, with the class as first output.
const TENSORS: &str = "\
    inputs: [{name: bias, dtype: f32, shape: []}, {name: pixels, dtype: u8, shape: [4]}], \
    output: {name: class, dtype: i64, shape: []}, \
    other_outputs: [{name: boxes, dtype: f32, shape: [2, 4]}, \
    {name: scores, dtype: f32, shape: [4]}]";

fn model(name: &str) -> PathBuf {
    let _ = fetched("models/digits.onnx");
    repository().join("engines/tests/data").join(name)
}

/// Returns the pixels of sample `i` and the class that the model computes from them.
fn sample(i: usize) -> ([u8; 4], i32) {
    let pixels = [7, 13, 29, 5].map(|p| (i * p % 200) as u8);
    let most = pixels.iter().max();
    let class = pixels.iter().position(|p| Some(p) == most).expect("one");
    (pixels, class as i32)
}

fn samples() -> Vec<u8> {
    let bias = |i: usize| (i as f32 * 0.5).to_le_bytes();
    (0..SAMPLES)
        .flat_map(|i| [bias(i), sample(i).0].concat())
        .collect()
}

/// Returns i32 labels; `wrong` of them differ from the model's class.
fn labels(wrong: usize) -> Vec<u8> {
    let label = |i: usize| (sample(i).1 + i32::from(i < wrong)) % 4;
    (0..SAMPLES).flat_map(|i| label(i).to_le_bytes()).collect()
}

fn detector(place: &TestFolder, node: &str, file: &str, port: u16) -> Running {
    let file = model(file);
    let file = file.display();
    let body = format!(
        "model: {{name: detect, file: {file}, {TENSORS}}}\nengine: {{kind: onnx, max_batch: 16}}"
    );
    accelerator(place, &place.accelerator_of(node, port, &body))
}

#[test]
fn several_outputs_of_two_accelerators_are_scored_for_each() {
    let place = TestFolder::new();
    let [a, b] = free_ports();
    place.write("samples", samples());
    place.write("labels", labels(6));
    let _a = detector(&place, "acc-a", "detect.onnx", a);
    let _b = detector(&place, "acc-b", "detect_of_4.onnx", b);
    let body = format!(
        "model: {{name: detect, {TENSORS}}}\n\
         dataset: {{kind: raw, samples: samples, labels: {{file: labels, dtype: i32}}}}\n\
         model_files: any\nnics: [{{address: 127.0.0.1, connections: 2}}]\n\
         engine: {{kind: onnx}}\nmodel_file: {}\n",
        model("detect.onnx").display()
    );
    let config = place.frontend_of(&[a, b], &body);
    let ended = place.run(&config, "wire", &ACCURACY).with_code(0);
    let s = place.summary("wire");
    assert_eq!(s["accuracy"], 0.9);
    assert_eq!(s["labelled"]["right"], 54);
    assert_eq!(s["labelled"]["answers"], 60);
    let count = |of: &str| -> u64 {
        let all = s["accelerators"].as_array().expect("a list");
        let own = |a: &Value| a["accuracy"][of].as_u64().unwrap_or(0);
        all.iter().map(own).sum()
    };
    assert_eq!((count("right"), count("answers")), (54, 60));
    assert_has(&ended.stdout, &["accuracy     90.000 %: 54 of 60"]);
    assert!(
        ["acc-a", "acc-b"].iter().any(|acc| {
            let line = format!("             {acc} ");
            ended
                .stdout
                .lines()
                .any(|l| l.starts_with(&line) && l.contains(" %: "))
        }),
        "{}",
        ended.stdout
    );
    // A run with `--local` gives the same answers, since its engine packs outputs the same way.
    let local = [&ACCURACY[..], &["--local"]].concat();
    place.run(&config, "out", &local).with_code(0);
    assert_eq!(place.answers("wire"), place.answers("out"));
    assert_eq!(place.answers("wire")[0].1.len(), 2 * (8 + 32 + 16));
}

/// `init --llm` of a folder with these files, with a program `vllm` that prints `version`, if any.
fn init_llm(place: &TestFolder, files: &[(&str, &str)], version: Option<&str>) -> Command {
    for folder in ["llama-3.1", "bin"] {
        fs::create_dir_all(place.path(folder)).expect("a folder");
    }
    for (name, text) in files {
        place.write(&format!("llama-3.1/{name}"), text);
    }
    if let Some(version) = version {
        let program = place.write(
            "bin/vllm",
            format!("#!/bin/sh\necho INFO\necho {version}\n"),
        );
        fs::set_permissions(program, fs::Permissions::from_mode(0o755)).expect("a program");
    }
    let mut command = qdl_command();
    command.args(["init", "--force", "--llm"]);
    command
        .arg(place.path("llama-3.1"))
        .arg("--output")
        .arg(place.path("out"));
    command.env("PATH", place.path("bin"));
    command
}

const CONFIG: (&str, &str) = (
    "config.json",
    r#"{"vocab_size": 1000, "max_position_embeddings": 256, "eos_token_id": 7}"#,
);

#[test]
fn a_language_model_gets_the_engine_whose_program_is_installed() {
    let place = TestFolder::new();
    let two = ("generation_config.json", r#"{"eos_token_id": [8, 9]}"#);
    let none = ("generation_config.json", "{}");
    let endless = ("config.json", &*CONFIG.1.replace("eos", "bos"));
    for (files, version, why) in [
        (&[CONFIG][..], None, "did not start (entity not found)"),
        (&[CONFIG], Some("0.33.0"), "it has not run with vLLM 0.33.0"),
        (&[CONFIG, two], Some(""), "it has not run with vLLM INFO"),
        (&[], Some("0.24.0+cpu"), ""),
        (&[endless, none], Some("0.24.0"), ""),
    ] {
        let printed = said(init_llm(&place, files, version));
        assert_has(
            &printed,
            &["llama-3.1: prompt: i32[192] ragged", "samples  1000\n"],
        );
        let path = place.path("out/accelerator.yaml");
        let text = fs::read_to_string(&path).expect("written");
        assert!(text.lines().all(|line| line.len() <= 100), "{text}");
        let engine = load_accelerator(&path).expect("sound").1;
        if let Some(core) = &engine.vllm {
            assert!(why.is_empty(), "{text}");
            assert_has(&printed, &["accelerator.yaml: vllm, of vLLM 0.24.0\n"]);
            assert_eq!(core.model, place.path("llama-3.1"));
            assert_eq!(core.ignore_eos, files.len() == 2);
            assert_eq!((&core.args[1][..], core.min_tokens), ("256", 2));
        } else {
            assert_has(&text, &[why, "`pip install vllm=="]);
            assert_has(&printed, &[why, "vllm serve ", " --max-model-len 256 "]);
            let http = engine.http.expect("a server");
            let eos: &[u32] = if files.len() == 2 { &[8, 9] } else { &[7] };
            assert_eq!((http.vocab, &http.eos[..]), (Some(1000), eos));
        }
    }
    let offsets = [0u64, 3, 103, 110].map(u64::to_le_bytes).concat();
    let head = [
        &b"QDLTOKEN"[..],
        &[1, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0],
    ]
    .concat();
    let prompts = place.write("p.tokens", [head, offsets, vec![1; 440]].concat());
    let mut command = init_llm(&place, &[], None);
    command
        .arg("--samples")
        .arg(prompts)
        .args(["--accelerator", "127.0.0.1:7433"]);
    let printed = said(command);
    assert_has(
        &printed,
        &[
            "prompt: i32[100] ragged -> tokens: i32[64] ragged",
            "samples  3\n",
        ],
    );
}

#[test]
fn a_folder_that_is_no_language_model_is_refused_by_name() {
    let place = TestFolder::new();
    let empty: (&str, &str) = ("config.json", r#"{"vocab_size": 5}"#);
    let tiny = (
        "config.json",
        r#"{"vocab_size": 5, "max_position_embeddings": 2, "eos_token_id": 4}"#,
    );
    let beyond = (
        "config.json",
        &*tiny.1.replace("2, ", "64, ").replace("4}", "5}"),
    );
    for (files, what) in [
        (&[][..], "llama-3.1/config.json: No such file"),
        (&[empty], "`max_position_embeddings` is missing"),
        (&[tiny], "max_position_embeddings is 2, too short"),
        (&[beyond], "vocab_size is 5, and eos_token_id is 5"),
    ] {
        assert_has(&refused(init_llm(&place, files, None)), &[what]);
        assert!(!place.path("out").exists(), "nothing is left");
    }
    let mut folder = init_llm(&place, &[CONFIG], None);
    folder.arg("--samples").arg(place.path("bin"));
    assert_has(&refused(folder), &["bin"]);
}
