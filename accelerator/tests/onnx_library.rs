//! A file that is no library. Alone in its process, which keeps the first library it opens.

use std::path::Path;

use accelerator::engine::{EngineKind, EngineParams, create};

#[test]
fn a_file_that_is_no_library_says_so() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let params = EngineParams {
        model: "m".into(),
        file: Some(folder.join("tests/data/masked_sum.onnx")),
        ..EngineParams::new(EngineKind::Onnx)
    };
    let params = params.with(|e| e.library = Some(folder.join("Cargo.toml")));
    let refused = create(&params).err().expect("a manifest is no library");
    let text = refused.to_string();
    assert!(
        text.contains("Cargo.toml") && text.contains("cargo xtask setup"),
        "{text}"
    );
}
