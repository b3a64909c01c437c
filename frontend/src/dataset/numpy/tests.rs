//! Tests with files from NumPy (`tests/data/numpy_files.py`), and with malformed files.

use std::{io::Write, path::PathBuf};

use proptest::prelude::*;
use qdl::testkit::assert_has;

use super::{super::file, *};

pub(in crate::dataset) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}

fn opened(name: &str) -> Vec<Array> {
    let arrays = open(&fixture(name), RawBytes::Unnamed, &|_, _| true)
        .unwrap_or_else(|e| panic!("{name}: {e}"));
    arrays.expect("NumPy's").opened
}

fn refused(name: &str) -> String {
    open(&fixture(name), RawBytes::Unnamed, &|_, _| true).expect_err(name)
}

fn all(a: &Array, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    a.read_at(0, &mut bytes).expect("there");
    bytes
}

#[test]
fn an_array_is_what_numpy_wrote() {
    let [a] = &opened("pixels.npy")[..] else {
        panic!("one array")
    };
    assert_eq!(a.header.text(), "uint8 (5, 4)");
    assert_eq!(a.check_layout(), Ok(()));
    assert_eq!(all(a, 20), (0..20).collect::<Vec<u8>>());
    let mut last = [0; 2];
    a.read_at(18, &mut last).expect("there");
    assert_eq!(last, [18, 19]);
    assert!(a.read_at(19, &mut last).is_err(), "beyond its end");
    assert_eq!(opened("classes.npy")[0].integers(), Ok(vec![3, 1, 0, 2, 3]));
}

#[test]
fn an_archive_is_its_arrays_by_name_compressed_or_not() {
    for name in ["detect.npz", "detect_packed.npz"] {
        let arrays = opened(name);
        let said: Vec<_> = arrays.iter().map(|a| (&*a.name, a.header.text())).collect();
        assert_eq!(
            said,
            [
                ("pixels", "uint8 (5, 4)".to_owned()),
                ("bias", "float32 (5,)".to_owned()),
                ("labels", "int64 (5,)".to_owned()),
            ]
        );
        assert_eq!(all(&arrays[0], 20), (0..20).collect::<Vec<u8>>());
        assert_eq!(all(&arrays[1], 8)[4..], (-1.5f32).to_le_bytes());
        assert_eq!(arrays[2].integers(), Ok(vec![3, 1, 0, 2, 3]));
        assert!(arrays[1].read_at(20, &mut [0]).is_err(), "beyond its end");
    }
}

#[test]
fn what_cannot_be_read_as_it_lies_says_what_to_save() {
    let fortran = &opened("fortran.npy")[0];
    let text = fortran.check_layout().expect_err("Fortran's");
    assert!(text.contains("np.ascontiguousarray"), "{text}");
    let big = &opened("big_endian.npy")[0];
    let text = big.check_layout().expect_err("big-endian");
    assert!(text.contains("astype('<i4')"), "{text}");
    assert!(refused("objects.npy").contains("pickled Python objects"));
    assert!(refused("records.npy").contains("save each field by itself"));
    let many = opened("pixels.npy")[0].integers().expect_err("two");
    assert_has(&many, &["uint8 (5, 4)", "(N,)"]);
}

#[test]
fn a_file_of_another_format_is_named() {
    let named = |content: &[u8], end: &str, raw| open(file(content, end).path(), raw, &|_, _| true);
    let (plain, files) = (RawBytes::Unnamed, RawBytes::Files);
    let text = named(b"\x89PNG\r\n\x1a\n....", ".raw", plain).expect_err("an image");
    assert!(text.starts_with("it is a PNG image: decode it"), "{text}");
    assert!(named(b"\x89PNG\r\n\x1a\n....", ".raw", files).is_ok());
    let text = named(b"no magic", ".npy", files).expect_err("a wrong name");
    assert!(text.contains("by its name it is NumPy's"), "{text}");
    assert!(matches!(named(b"no magic", ".u8", plain), Ok(None)));
    // A pointer is no sample, even if samples are files.
    let pointer = b"version https://git-lfs.github.com/spec/v1\n";
    for (end, raw) in [(".raw", files), (".npy", plain), ("", RawBytes::Typed)] {
        let text = named(pointer, end, raw).expect_err("a pointer");
        assert_has(&text, &["it is a pointer of Git LFS", "git lfs pull"]);
    }
    assert!(named(b"{\"text\": \"a\"}", ".raw", files).is_ok());
    let mut zip = zip::ZipWriter::new(io::Cursor::new(Vec::new()));
    let stored =
        zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    zip.start_file("a.txt", stored).expect("in memory");
    let zip = zip.finish().expect("in memory").into_inner();
    let text = named(&zip, ".npz", plain).expect_err("no arrays");
    assert!(text.contains("no .npz"), "{text}");
    let text = named(&zip[..20], ".npz", plain).expect_err("broken");
    assert!(text.contains("broken zip archive"), "{text}");
}

fn npy(dictionary: &str, bytes: &[u8]) -> Vec<u8> {
    let mut all = b"\x93NUMPY\x01\x00".to_vec();
    all.extend((dictionary.len() as u16).to_le_bytes());
    all.extend(dictionary.as_bytes());
    all.extend(bytes);
    all
}

#[test]
fn sizes_are_those_of_the_header() {
    let good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }   \n";
    let with = |dictionary: &str, bytes: usize| {
        let f = file(&npy(dictionary, &vec![0; bytes]), ".npy");
        open(f.path(), RawBytes::Unnamed, &|_, _| true)
            .map(|a| a.map(|a| a.opened[0].header.text()))
    };
    assert_eq!(with(good, 8), Ok(Some("float32 (2,)".to_owned())));
    for bytes in [7, 9] {
        let text = with(good, bytes).expect_err("another size");
        assert_has(&text, &["has 8 bytes", "cut short"]);
    }
    let much = good.replace("(2,)", "(4294967295, 4294967295, 4294967295)");
    assert!(with(&much, 8).is_err_and(|e| e.contains("too many")));
    assert_eq!(
        with(&good.replace("(2,)", "()"), 4),
        Ok(Some("float32 ()".to_owned()))
    );
    // Python 2 wrote long numbers; a type without a byte order has the machine's.
    for old in [
        good.replace("(2,)", "(2L,)"),
        good.replace("(2,)", "(1L, 2L)"),
        good.replace("<f4", "f4"),
        good.replace("<f4", "|f4"),
    ] {
        assert!(with(&old, 8).is_ok_and(|text| text.is_some()), "{old}");
    }
    for odd in [
        good.replace("(2,)", "(L,)"),
        good.replace("(2,)", "(2LL,)"),
        good.replace("(2,)", "(-2,)"),
        good.replace("(2,)", "(2 2)"),
        good.replace("'shape'", "'form'"),
        good.replace("False", "0"),
        good.replace("}", "} + f()"),
        good.replace("'fortran_order': False, ", ""),
        good.replace("'fortran_order'", "'descr': '<f4', 'fortran_order'"),
        "{".to_owned(),
        String::new(),
    ] {
        let text = with(&odd, 8).expect_err(&odd);
        assert!(text.contains("not what NumPy writes"), "{odd}: {text}");
    }
}

#[test]
fn of_an_archive_only_arrays_that_are_asked_for_are_opened() {
    let mut zip = zip::ZipWriter::new(io::Cursor::new(Vec::new()));
    let deflated = zip::write::SimpleFileOptions::default();
    let good = npy(
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }   \n",
        &[0; 8],
    );
    let objects = std::fs::read(fixture("objects.npy")).expect("a fixture");
    for (name, content) in [
        ("meta.npy", &objects),
        ("x.npy", &good),
        ("cut.npy", &vec![7]),
    ] {
        zip.start_file(name, deflated).expect("in memory");
        zip.write_all(content).expect("in memory");
    }
    let zip = file(&zip.finish().expect("in memory").into_inner(), ".npz");
    let asked = open(zip.path(), RawBytes::Unnamed, &|name, all| {
        name == "x" && all.len() == 3
    });
    let arrays = asked.expect("sound").expect("an archive").opened;
    assert_eq!(arrays.len(), 1);
    assert_eq!(arrays[0].header.text(), "float32 (2,)".to_owned());
    for name in ["meta", "cut"] {
        let e = open(zip.path(), RawBytes::Unnamed, &|own, _| own == name).expect_err(name);
        assert!(e.contains(&format!("array `{name}`")), "{e}");
    }
}

#[test]
fn an_array_whose_name_would_break_a_line_is_refused_in_one() {
    let mut content = std::fs::read(fixture("detect.npz")).expect("a fixture");
    let name = b"pixels.npy";
    let places: Vec<_> = (0..content.len())
        .filter(|i| content[*i..].starts_with(name))
        .collect();
    assert_eq!(places.len(), 2, "before the entry, and in the directory");
    places.iter().for_each(|i| content[*i] = b'\n');
    let f = file(&content, ".npz");
    let why = open(f.path(), RawBytes::Unnamed, &|_, _| true).expect_err("refused");
    assert_eq!(why, r"array `\nixels`: its name has control characters");
}

fn code() -> impl Strategy<Value = (&'static str, usize)> {
    prop::sample::select(vec![
        ("|u1", 1),
        ("|b1", 1),
        ("<f2", 2),
        (">i4", 4),
        ("<f4", 4),
        ("<i8", 8),
    ])
}

proptest! {
    /// All valid files read back as written, in versions 1 and 2, with keys in any order and either
    /// kind of quote.
    #[test]
    fn a_header_comes_back_as_it_was_written(
        (code, width) in code(),
        shape in prop::collection::vec(0usize..6, 0..4),
        fortran in any::<bool>(),
        turned in 0usize..3,
        second in any::<bool>(),
        double in any::<bool>(),
    ) {
        let tuple: String = shape.iter().map(|d| format!("{d}, ")).collect();
        let word = if fortran { "True" } else { "False" };
        let mut keys = [
            format!("'descr': '{code}', "),
            format!("'fortran_order': {word}, "),
            format!("'shape': ({tuple}), "),
        ];
        keys.rotate_left(turned);
        let mut text = format!("{{{}}}\n", keys.concat());
        if double {
            text = text.replace('\'', "\"");
        }
        let len = shape.iter().product::<usize>() * width;
        let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
        let mut content = npy(&text, &bytes);
        if second {
            content[6] = 2;
            content.splice(10..10, [0, 0]);
        }
        let f = file(&content, ".npy");
        let arrays = open(f.path(), RawBytes::Unnamed, &|_, _| true).expect("sound").expect("an array").opened;
        prop_assert_eq!(&arrays[0].header.shape, &shape);
        prop_assert_eq!(arrays[0].header.element, Element::of_code(code).expect("known"));
        let dimensions = shape.iter().filter(|d| **d > 1).count();
        prop_assert_eq!(arrays[0].header.fortran_matters(), fortran && dimensions > 1);
        prop_assert_eq!(all(&arrays[0], bytes.len()), bytes);
    }
}
