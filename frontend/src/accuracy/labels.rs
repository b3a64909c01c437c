//! Reads the right class of each sample from a file.
//!
//! The element type is never guessed from the file's length: a NumPy array or the configuration
//! states it, and the default is `i64`. A number that is no class of the model is an error, so that
//! a file of another type or data set yields no accuracy.

use std::fs;

use anyhow::{Result, anyhow};
use frontend_config::LabelsConfig;
use qdl::model::{DType, TensorSpec};

use crate::dataset::{
    LABELS,
    numpy::{self, Array, Element, RawBytes},
};

/// Reads one class for each of `samples` samples, of a model with this output.
pub fn read(labels: &LabelsConfig, samples: usize, output: &TensorSpec) -> Result<Vec<i64>> {
    let path = &*labels.file;
    let wrong = |why: String| anyhow!("labels {}: {why}", path.display());
    let without_magic = match labels.dtype {
        Some(_) => RawBytes::Typed,
        None => RawBytes::Unnamed,
    };
    let is_labels = |name: &str, all: &[&str]| all.len() == 1 || name == LABELS;
    let classes = match numpy::open(path, without_magic, &is_labels).map_err(wrong)? {
        Some(arrays) => of_array(&arrays.opened, labels.dtype).map_err(wrong)?,
        None => {
            let bytes = fs::read(path).map_err(|e| wrong(format!("cannot read it: {e}")))?;
            raw(&bytes, labels, samples).map_err(wrong)?
        }
    };
    if classes.len() != samples {
        return Err(wrong(format!(
            "it has {} labels, and the data set {samples} samples: give one for each sample, in \
             the order of the samples",
            classes.len()
        )));
    }
    match classes.iter().position(|c| !is_class(*c, output)) {
        None => Ok(classes),
        Some(index) => Err(wrong(format!(
            "the label of sample {index} is {}, and the model's output, {output}, has {}: is the \
             file of another type, or another model's? Say its type, or give this model's labels",
            classes[index],
            match scores(output) {
                1 => format!("classes of {}", output.dtype),
                n => format!("classes 0 to {}", n - 1),
            }
        ))),
    }
}

fn of_array(arrays: &[Array], said: Option<DType>) -> Result<Vec<i64>, String> {
    let Some(array) = arrays.first() else {
        return Err(format!(
            "it has several arrays, and none of them is called `{LABELS}`: save it again with one that \
             is, as in numpy.savez(FILE, {LABELS}=...)"
        ));
    };
    match said.filter(|said| !array.header.element.is(*said)) {
        Some(said) => Err(format!(
            "it is {}, and not {said} as was said: leave `dtype` out (in `init`, \
             --labels-dtype), the file says it",
            array.header.text()
        )),
        None => array.integers(),
    }
}

/// The labels of a file without a header: `i64` unless `labels` states another type.
fn raw(bytes: &[u8], labels: &LabelsConfig, samples: usize) -> Result<Vec<i64>, String> {
    let dtype = labels.dtype.unwrap_or(DType::I64);
    let wanted = samples.saturating_mul(dtype.bytes());
    match bytes.len() {
        len if len == wanted => Element::from(dtype).whole_numbers(bytes),
        len => Err(format!(
            "{len} bytes are no labels of {dtype} for {samples} samples, {wanted} are: say their \
             type, as in `labels: {{file: FILE, dtype: i32}}` (`init --labels-dtype i32`), or give \
             one label for each sample"
        )),
    }
}

/// Number of scores per sample in an output; 1 if the output is the class itself.
fn scores(output: &TensorSpec) -> usize {
    output.shape.iter().product()
}

/// Whether a model with this output can return `class`.
fn is_class(class: i64, output: &TensorSpec) -> bool {
    match scores(output) {
        1 => match output.dtype {
            DType::U8 => (0..=255).contains(&class),
            DType::I8 => (-128..=127).contains(&class),
            // No model has more classes; a larger number is two 32-bit labels read as one.
            _ => class.unsigned_abs() < 1 << 31,
        },
        n => usize::try_from(class).is_ok_and(|class| class < n),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use qdl::testkit::assert_has;

    use super::{super::tests::output, *};

    fn labels(
        content: &[u8],
        end: &str,
        dtype: Option<DType>,
        samples: usize,
        output: &TensorSpec,
    ) -> Result<Vec<i64>, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join(format!("l{end}"));
        fs::write(&file, content).expect("written");
        let read = read(&LabelsConfig { file, dtype }, samples, output);
        read.map_err(|e| {
            let text = e.to_string();
            assert!(
                text.starts_with("labels /") && !text.contains('\n'),
                "{text}"
            );
            text
        })
    }

    fn i32s(values: &[i32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    fn i64s(values: &[i64]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    /// Labels of i32, read as f32 by mistake, as the output's elements have four bytes too.
    #[test]
    fn labels_of_32_bits_are_what_is_said_of_them_and_never_guessed() {
        let (scores, file) = (output(DType::F32, &[4]), i32s(&[3, 0, 2, 1]));
        let text = labels(&file, ".i32", None, 4, &scores).expect_err("nobody said");
        assert_has(
            &text,
            &[
                "16 bytes are no labels of i64 for 4 samples, 32 are",
                "`labels: {file: FILE, dtype: i32}`",
            ],
        );
        let text = labels(&file, ".i32", Some(DType::I8), 4, &scores).expect_err("of one byte");
        assert!(text.contains("4 are: say their type"), "{text}");
        assert_eq!(
            labels(&file, "", Some(DType::I32), 4, &scores),
            Ok(vec![3, 0, 2, 1])
        );
        let text = labels(&file, "", Some(DType::F32), 4, &scores).expect_err("not whole");
        assert!(text.contains("as float32, number 0 is 4.2"), "{text}");
    }

    #[test]
    fn a_plain_file_of_64_bits_is_read_as_it_was() {
        let class = output(DType::I64, &[1]);
        assert_eq!(
            labels(&i64s(&[4, 5, 9]), "", None, 3, &class),
            Ok(vec![4, 5, 9])
        );
        let floats = [2f32, 0.0].map(f32::to_le_bytes).concat();
        let scores = output(DType::F32, &[4]);
        assert_eq!(
            labels(&floats, "", Some(DType::F32), 2, &scores),
            Ok(vec![2, 0])
        );
        assert_eq!(
            labels(&[3, 1], "", Some(DType::U8), 2, &scores),
            Ok(vec![3, 1])
        );
    }

    /// The official labels of rgat are raw numbers under the name `.npy`.
    #[test]
    fn labels_whose_type_is_said_are_raw_numbers_under_any_name() {
        let scores = output(DType::F32, &[4]);
        for end in [".npy", ".npz", ".raw"] {
            let typed = labels(&i32s(&[3, 0]), end, Some(DType::I32), 2, &scores);
            assert_eq!(typed, Ok(vec![3, 0]), "{end}");
        }
        let text = labels(&i64s(&[3, 0]), ".npy", None, 2, &scores).expect_err("nobody said");
        assert_has(&text, &["wrong name", "`dtype`"]);
    }

    #[test]
    fn labels_of_another_data_set_or_type_are_noticed() {
        let scores = output(DType::F32, &[4]);
        // Eight labels of 32 bits are as long as four of 64 bits.
        let text = labels(&i32s(&[3, 0, 2, 1, 1, 2, 3, 0]), "", None, 4, &scores);
        let text = text.expect_err("too large");
        assert!(text.contains("label of sample 1 is 4294967298"), "{text}");
        let class = output(DType::I64, &[]);
        let text = labels(&i32s(&[3, 1, 2, 1]), "", None, 2, &class).expect_err("too large");
        assert!(text.contains("label of sample 0 is 4294967299"), "{text}");
        let text = labels(&i64s(&[0, 4]), "", None, 2, &scores).expect_err("no fifth score");
        assert_has(&text, &["sample 1 is 4", "classes 0 to 3"]);
        let text = labels(&i64s(&[0, -1]), "", None, 2, &scores).expect_err("negative");
        assert!(text.contains("sample 1 is -1"), "{text}");
        let text = labels(&[0; 30], "", Some(DType::I32), 4, &scores).expect_err("30 bytes");
        assert_has(&text, &["30 bytes", "16 are"]);
        let absent = LabelsConfig {
            file: "/no/labels".into(),
            dtype: None,
        };
        let text = read(&absent, 1, &scores).expect_err("absent").to_string();
        assert!(
            text.starts_with("labels /no/labels: cannot open it"),
            "{text}"
        );
    }

    #[test]
    fn files_of_numpys_say_what_they_are() {
        let fixture = |name: &str| {
            fs::read(
                Path::new(env!("CARGO_MANIFEST_DIR"))
                    .join("tests/data")
                    .join(name),
            )
            .expect(name)
        };
        let (scores, want) = (output(DType::F32, &[4]), vec![3, 1, 0, 2, 3]);
        let npy = fixture("classes.npy");
        assert_eq!(labels(&npy, ".npy", None, 5, &scores), Ok(want.clone()));
        assert_eq!(
            labels(&npy, "", Some(DType::I32), 5, &scores),
            Ok(want.clone())
        );
        assert_eq!(
            labels(&fixture("detect.npz"), ".npz", None, 5, &scores),
            Ok(want)
        );
        let text = labels(&npy, "", Some(DType::I64), 5, &scores).expect_err("of 32 bits");
        assert_has(&text, &["int32 (5, 1)", "leave `dtype` out"]);
        let text = labels(&npy, "", None, 6, &scores).expect_err("five");
        assert_has(&text, &["it has 5 labels, and the data set 6 samples"]);
        let text = labels(&fixture("pixels.npy"), "", None, 5, &scores).expect_err("two");
        assert!(text.contains("one number for each sample"), "{text}");
        let text = labels(b"PAR1....PAR1", "", None, 1, &scores).expect_err("a table");
        assert!(text.contains("it is a Parquet table"), "{text}");
        // Whatever the type and the name, a text in the place of the file is no labels.
        let page = b"<!DOCTYPE html>.";
        let text = labels(page, ".npy", Some(DType::I64), 2, &scores).expect_err("a page");
        assert!(text.contains("it is a web page"), "{text}");
    }
}
