//! Samples in NumPy arrays, one array for each input of the model.
//!
//! ```text
//! sample 3 | first rows of ids[3] | first rows of mask[3] | bias[3] |
//! ```
//!
//! An array's first dimension counts the samples. The others are the input's shape, or the maximum
//! shape of a ragged input. The file of lengths states how many bytes of each sample are sent.

use std::path::Path;

use anyhow::Result;
use qdl::model::{ModelSpec, TensorSpec};

use super::{
    Dataset, Lengths, Source, empty, length,
    numpy::{self, Array, Arrays},
    wrong,
};

#[derive(Debug)]
struct InputArray {
    array: Array,
    /// Bytes from one sample to the next.
    stride: usize,
    /// Bytes of a row, if the input is ragged.
    row: Option<usize>,
}

#[derive(Debug)]
pub(super) struct InputArrays {
    all: Box<[InputArray]>,
    /// Total bytes of the fixed inputs; `row` is the bytes of one row over all ragged inputs.
    fixed: usize,
    row: usize,
}

impl InputArrays {
    /// Fills `to` with the first bytes of sample `index`.
    pub fn read(&self, index: usize, to: &mut [u8]) -> std::io::Result<()> {
        let rows = to.len().saturating_sub(self.fixed) / self.row.max(1);
        let mut rest = to;
        for c in &self.all {
            let own = c.row.map_or(c.stride, |row| row * rows).min(rest.len());
            let (part, behind) = rest.split_at_mut(own);
            c.array.read_at(index as u64 * c.stride as u64, part)?;
            rest = behind;
        }
        Ok(())
    }

    /// Number of rows of a sample of `len` bytes; `None` if no sample has that length.
    fn rows(&self, len: usize) -> Option<usize> {
        let rest = len.checked_sub(self.fixed)?;
        let rows = rest.checked_div(self.row)?;
        let most = |c: &InputArray| c.row.map(|row| c.stride / row);
        let fits = self.all.iter().filter_map(most).all(|most| rows <= most);
        (rest.is_multiple_of(self.row) && rows > 0 && fits).then_some(rows)
    }
}

impl Dataset {
    pub(super) fn arrays(
        path: &Path,
        arrays: Arrays,
        model: &ModelSpec,
        lengths: Option<&Path>,
    ) -> Result<Self> {
        let wrong = |why: String| wrong(path.display(), why);
        let Arrays { mut opened, names } = arrays;
        let mut chosen = Vec::new();
        for input in &model.inputs {
            let array = choose(&mut opened, input, &names, model).map_err(wrong)?;
            check(&array, input).map_err(|why| match &*array.name {
                "" => wrong(why),
                name => wrong(format!("array `{name}`: {why}")),
            })?;
            chosen.push((array, input));
        }
        let count = chosen.first().map_or(0, |(a, _)| a.header.shape[0]);
        if let Some((other, _)) = chosen.iter().find(|(a, _)| a.header.shape[0] != count) {
            return Err(wrong(format!(
                "array `{}` has {} samples, `{}` has {count}",
                other.name, other.header.shape[0], chosen[0].0.name
            )));
        }
        if count == 0 {
            return Err(empty(path.display()));
        }
        let of_input = |(array, input): (Array, &TensorSpec)| {
            let stride = input.bytes().unwrap_or_default();
            let rows = input.shape.first().filter(|_| input.ragged);
            let row = rows.map(|rows| stride / rows.max(&1));
            InputArray { array, stride, row }
        };
        let all: Box<[InputArray]> = chosen.into_iter().map(of_input).collect();
        let fixed = all.iter().filter(|a| a.row.is_none());
        let arrays = InputArrays {
            fixed: fixed.map(|a| a.stride).sum(),
            row: all.iter().filter_map(|a| a.row).sum(),
            all,
        };
        let lengths = match lengths {
            None => Lengths::Equal {
                len: length(arrays.all.iter().map(|a| a.stride).sum())?,
                count,
            },
            Some(file) => Lengths::Each(each_length(file, count, &arrays)?),
        };
        Ok(Dataset::in_file(path, lengths, Source::Arrays(arrays)))
    }
}

/// Whether an archive's array belongs to an input: by the array's name or, if the model has one
/// input, as the only array besides the labels.
pub(super) fn is_input(name: &str, all: &[&str], model: &ModelSpec) -> bool {
    let named = |name: &str| model.inputs.iter().any(|t| t.name == name);
    let others = all.iter().filter(|own| **own != super::LABELS);
    let only = || model.inputs.len() == 1 && others.count() == 1 && name != super::LABELS;
    named(name) || !all.iter().any(|own| named(own)) && only()
}

/// Maximum number of array names in a message.
const SHOWN: usize = 8;

/// Takes the array of an input: by the input's name or, for a single input, the only array.
fn choose(
    arrays: &mut Vec<Array>,
    input: &TensorSpec,
    names: &[String],
    model: &ModelSpec,
) -> Result<Array, String> {
    if let Some(at) = arrays.iter().position(|a| a.name == input.name) {
        return Ok(arrays.swap_remove(at));
    }
    match arrays.len() {
        1 if model.inputs.len() == 1 => Ok(arrays.swap_remove(0)),
        _ => {
            let wanted = model.inputs.iter().map(|t| format!("{}=...", t.name));
            let wanted = wanted.collect::<Vec<_>>().join(", ");
            let own = names.iter().take(SHOWN);
            let mut own: Vec<_> = own.map(|a| format!("`{}`", a.escape_debug())).collect();
            if names.len() > SHOWN {
                own.push(format!("{} more", names.len() - SHOWN));
            }
            let there = match names.is_empty() {
                true => String::new(),
                false => format!(", but {}", own.join(", ")),
            };
            let inputs = match model.inputs.len() {
                1 => "1 input".to_owned(),
                n => format!("{n} inputs"),
            };
            Err(format!(
                "it has no array `{}`{there}; a model of {inputs} needs one for each input: \
                 np.savez(FILE, {wanted})",
                input.name
            ))
        }
    }
}

/// Checks that type, layout and shape match the input's.
fn check(array: &Array, input: &TensorSpec) -> Result<(), String> {
    let shape_fits = array
        .header
        .shape
        .split_first()
        .is_some_and(|(_, s)| *s == input.shape);
    if !array.header.element.is(input.dtype) || !shape_fits {
        let sizes: Vec<_> = input.shape.iter().map(ToString::to_string).collect();
        let shape = std::iter::once("N".to_owned()).chain(sizes);
        let cast = array
            .header
            .element
            .cast(input.dtype)
            .filter(|_| shape_fits);
        let cast = cast.map_or_else(String::new, |name| format!(": save a.astype('{name}')"));
        return Err(format!(
            "it is {}, and the model's input is {input}: {} ({}{}) is wanted{cast}",
            array.header.text(),
            numpy::Element::from(input.dtype).name(),
            shape.collect::<Vec<_>>().join(", "),
            if input.shape.is_empty() { "," } else { "" }
        ));
    }
    array.check_layout()
}

/// Bytes of each sample from a file of lengths; checks that a sample can have each length.
fn each_length(file: &Path, count: usize, arrays: &InputArrays) -> Result<Box<[u32]>> {
    let each = super::files::lengths(file)?;
    let odd = |len: &u32| arrays.rows(*len as usize).is_none();
    let why = if each.len() != count {
        let own = each.len();
        format!("it has {own} lengths, and there are {count} samples")
    } else if let Some(index) = each.iter().position(odd) {
        format!(
            "sample {index} has {} bytes, and the model's samples are {} and whole rows of {} \
             bytes, as many as the arrays have at most",
            each[index], arrays.fixed, arrays.row
        )
    } else {
        return Ok(each);
    };
    Err(wrong(file.display(), why))
}

#[cfg(test)]
mod tests {
    use qdl::model::DType;

    use qdl::testkit::assert_has;

    use super::{super::bytes, numpy::tests::fixture, *};

    fn tensor(name: &str, dtype: DType, shape: &[usize], ragged: bool) -> TensorSpec {
        TensorSpec {
            name: name.to_owned(),
            dtype,
            shape: shape.to_vec(),
            ragged,
        }
    }

    fn model(inputs: Vec<TensorSpec>) -> ModelSpec {
        ModelSpec {
            inputs,
            ..ModelSpec::opaque("m", 1, 1)
        }
    }

    fn pixels() -> TensorSpec {
        tensor("pixels", DType::U8, &[4], false)
    }

    fn bias() -> TensorSpec {
        tensor("bias", DType::F32, &[], false)
    }

    fn open(name: &str, inputs: Vec<TensorSpec>, lengths: Option<&Path>) -> Result<Dataset> {
        Dataset::of_file(&fixture(name), lengths, &model(inputs))
    }

    fn complaint(name: &str, inputs: Vec<TensorSpec>) -> String {
        let text = open(name, inputs, None).expect_err(name).to_string();
        assert!(
            text.starts_with("data set /") && !text.contains('\n'),
            "{text}"
        );
        text
    }

    #[test]
    fn arrays_of_several_inputs_are_packed_in_the_models_order() {
        for name in ["detect.npz", "detect_packed.npz"] {
            let d = open(name, vec![bias(), pixels()], None).expect("five samples");
            assert_eq!((d.count(), d.equal_len()), (5, Some(8)));
            let want = [&2f32.to_le_bytes()[..], &[8, 9, 10, 11]].concat();
            assert_eq!(bytes(&d, 2), want);
        }
    }

    #[test]
    fn an_array_that_is_not_the_models_input_is_refused_by_both() {
        let text = complaint("pixels.npy", vec![tensor("x", DType::F32, &[4], false)]);
        assert!(
            text.contains("it is uint8 (5, 4)")
                && text.ends_with("float32 (N, 4) is wanted: save a.astype('float32')"),
            "{text}"
        );
        let text = complaint("pixels.npy", vec![tensor("x", DType::U8, &[2, 2], false)]);
        assert!(text.ends_with("uint8 (N, 2, 2) is wanted"), "{text}");
        let text = complaint("pixels.npy", vec![pixels(), bias()]);
        assert!(
            text.contains("no array `bias`")
                || text.contains("np.savez(FILE, pixels=..., bias=...)"),
            "{text}"
        );
        let text = complaint("detect.npz", vec![tensor("x", DType::U8, &[4], false)]);
        assert_has(&text, &["it has no array `x`, but `", "`pixels`"]);
        let text = complaint("fortran.npy", vec![pixels()]);
        assert!(text.contains("Fortran"), "{text}");
        let text = complaint("big_endian.npy", vec![tensor("x", DType::I32, &[4], false)]);
        assert!(text.contains("big-endian"), "{text}");
    }

    #[test]
    fn ragged_inputs_are_sent_at_the_lengths_of_another_file() {
        let ragged = || vec![tensor("pixels", DType::U8, &[4], true), bias()];
        let folder = tempfile::tempdir().expect("a folder");
        let file = |lengths: &[u32]| {
            let path = folder.path().join("lengths");
            let le: Vec<u8> = lengths.iter().flat_map(|len| len.to_le_bytes()).collect();
            std::fs::write(&path, le).expect("written");
            path
        };
        let good = file(&[5, 8, 6, 7, 8]);
        let d = open("detect.npz", ragged(), Some(&good)).expect("five samples");
        let want = [&[8, 9][..], &2f32.to_le_bytes()].concat();
        assert_eq!((d.len(2), bytes(&d, 2)), (Some(6), want));
        for (lengths, what) in [
            (&[5, 8, 6, 7][..], "it has 4 lengths, and there are 5"),
            (&[5, 8, 4, 7, 8], "sample 2 has 4 bytes"),
            (&[5, 8, 9, 7, 8], "sample 2 has 9 bytes"),
        ] {
            let bad = file(lengths);
            let text = open("detect.npz", ragged(), Some(&bad)).expect_err(what);
            assert!(text.to_string().contains(what), "{text}");
        }
    }
}
