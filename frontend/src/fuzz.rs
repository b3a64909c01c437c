//! Entry functions of the fuzz targets `yaml`, `loadgen_conf` and `arrays`: any bytes of a file.

use std::{
    fs,
    path::{Path, PathBuf},
};

use engines::config::parse_accelerator;
use frontend_config::FrontendFile;
use loadgen_bridge::{Scenario, TestSettings, conf_values, has_byte_order_mark, ignored_lines};

use crate::dataset::numpy::{self, Array, RawBytes};

/// Writes `data` into a file that each call of this thread overwrites.
fn file(data: &[u8]) -> PathBuf {
    let thread = std::thread::current().id();
    let name = format!("qdl-fuzz-{}-{thread:?}", std::process::id());
    let path = std::env::temp_dir().join(name);
    fs::write(&path, data).expect("room in the temporary folder");
    path
}

/// A configuration file of either node. Each error names its file and line.
pub fn yaml(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let base = Path::new("/nowhere");
    let errors = [
        FrontendFile::parse(text, "f.yaml", base).err(),
        parse_accelerator(text, "a.yaml", base).err(),
    ];
    for error in errors.into_iter().flatten() {
        let text = error.to_string();
        assert!(text.contains(".yaml"), "no place in {text}");
    }
}

/// A `user.conf` or an `audit.config`. Each line that LoadGen's reader would misread is an error of
/// one line of text with the file's name. The first byte selects the scenario.
pub fn loadgen_conf(data: &[u8]) {
    use Scenario::{MultiStream, Offline, Server, SingleStream};
    let Some((choice, data)) = data.split_first() else {
        return;
    };
    let scenario = [SingleStream, MultiStream, Server, Offline][usize::from(choice & 3)];
    let path = file(data);
    let mut settings = TestSettings {
        scenario,
        ..TestSettings::default()
    };
    // LoadGen itself reads the first sound file alone; the checks before it read each file.
    let user = settings.apply_user_conf(&path, "resnet50", &["own"]).err();
    let audit = TestSettings::default().as_run(Some(&path)).err();
    for error in user.into_iter().chain(audit) {
        let text = error.to_string();
        let name = path.display().to_string();
        assert!(text.contains(&name) && !text.contains('\n'), "{text:?}");
    }
    for value in conf_values(&path, "resnet50", scenario).unwrap_or_default() {
        let beats_itself = value.beaten_by == Some(value.line);
        assert!(value.line > 0 && !beats_itself, "{value:?}");
    }
    ignored_lines(&path);
    has_byte_order_mark(&path);
    let _ = fs::remove_file(path);
}

/// A `.npy`, a `.npz` or raw bytes. A reader gets no byte beyond an array's own.
pub fn arrays(data: &[u8]) {
    let path = file(data);
    for raw in [RawBytes::Unnamed, RawBytes::Typed, RawBytes::Files] {
        match numpy::open(&path, raw, &|_, _| true) {
            Ok(arrays) => {
                let opened = arrays.into_iter().flat_map(|a| a.opened);
                opened.for_each(|array| read(&path, &array));
            }
            Err(why) => assert!(!why.contains('\n'), "{why:?}"),
        }
    }
    let _ = fs::remove_file(path);
}

fn read(path: &Path, array: &Array) {
    let size = fs::metadata(path).map_or(0, |m| m.len());
    assert!(!array.header.text().contains('\n') && !array.name.contains('\n'));
    let _ = (array.check_layout(), array.integers());
    let each = array.header.element.bytes as u64;
    let count = array
        .header
        .shape
        .iter()
        .map(|d| *d as u64)
        .product::<u64>();
    let own = each * count;
    let has_byte = |at| array.read_at(at, &mut [0]).is_ok();
    assert_eq!(has_byte(0), own > 0, "{}", array.header.text());
    assert!(!has_byte(own), "a byte of {size} behind the array");
    assert!(!has_byte(u64::MAX));
}
