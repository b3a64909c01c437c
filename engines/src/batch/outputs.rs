//! Splits a model's output tensors into responses. A response has a sample's part of each output,
//! back to back in the model's order.
//!
//! ```text
//! scores   | sample 0 | sample 1 | ...
//! boxes    | sample 0 | sample 1 | ...
//! response | scores of sample 0 | boxes of sample 0 |
//! ```

use qdl::model::ModelSpec;

use super::unpack::unsuited;
use crate::EngineError;

#[derive(Debug)]
pub(crate) struct Outputs {
    /// Bytes per sample of each output.
    pub widths: Vec<usize>,
    /// Buffer for a response that consists of several outputs, filled anew for each sample.
    response: Vec<u8>,
}

impl Outputs {
    pub fn new(model: &ModelSpec) -> Result<Self, EngineError> {
        let width =
            |t: &qdl::model::TensorSpec| t.bytes().ok_or_else(|| unsuited(&t.name, "is too large"));
        let widths: Vec<usize> = model.outputs().map(width).collect::<Result<_, _>>()?;
        let bytes = model.max_output_bytes().unwrap_or_default();
        Ok(Outputs {
            response: Vec::with_capacity(if widths.len() > 1 { bytes } else { 0 }),
            widths,
        })
    }

    /// Passes the responses of the first `samples` samples to `each`; discards padding. `tensor`
    /// gets the index of an output, and the bytes per sample of all outputs before this output. It
    /// returns the output's bytes for at least `samples` samples.
    /// Error: the error of `each`; a tensor with too few samples.
    pub fn split<'t>(
        &mut self,
        samples: usize,
        tensor: impl Fn(usize, usize) -> &'t [u8],
        mut each: impl FnMut(usize, &[u8]) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let short = || EngineError::run("outputs", samples, "an output is shorter than its batch");
        for i in 0..samples {
            // The response of a single output needs no copy.
            if let [width] = self.widths[..] {
                let own = tensor(0, 0).get(i * width..(i + 1) * width);
                each(i, own.ok_or_else(short)?)?;
                continue;
            }
            self.response.clear();
            for (o, width) in self.widths.iter().enumerate() {
                let before = self.response.len();
                let own = tensor(o, before).get(i * width..(i + 1) * width);
                self.response.extend_from_slice(own.ok_or_else(short)?);
            }
            each(i, &self.response)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use qdl::model::DType;

    use super::*;
    use crate::testkit::tensor;

    fn of_shapes(shapes: &[&[usize]]) -> ModelSpec {
        let all = shapes.iter();
        let mut all: Vec<_> = all
            .map(|s| tensor(&format!("{s:?}"), DType::U8, s))
            .collect();
        ModelSpec {
            output: all.remove(0),
            other_outputs: all,
            ..ModelSpec::opaque("m", 1, 1)
        }
    }

    fn split(shapes: &[&[usize]], samples: usize, tensors: &[&[u8]]) -> Option<Vec<Vec<u8>>> {
        let mut outputs = Outputs::new(&of_shapes(shapes)).expect("small");
        let mut all = Vec::new();
        let done = outputs.split(
            samples,
            |o, _| tensors[o],
            |i, response| {
                assert_eq!(i, all.len());
                all.push(response.to_vec());
                Ok(())
            },
        );
        done.ok().map(|()| all)
    }

    #[test]
    fn a_response_is_what_each_output_says_of_its_sample() {
        // Three samples, of which the last is padding.
        let tensors: [&[u8]; 3] = [b"abcdef", b"123", b""];
        let got = split(&[&[2], &[], &[0]], 2, &tensors).expect("enough");
        assert_eq!(got, [b"ab1", b"cd2"]);
        assert_eq!(
            split(&[&[2]], 2, &tensors[..1]).expect("enough"),
            [b"ab", b"cd"]
        );
        assert_eq!(split(&[&[0]], 2, &tensors[2..]).expect("none"), [b"", b""]);
        // One output after the other in one buffer, as copied from a GPU.
        let mut outputs = Outputs::new(&of_shapes(&[&[2], &[1], &[1]])).expect("small");
        let (landed, mut all) = (b"abcd1256", Vec::new());
        let from = |_, before: usize| &landed[before * 2..];
        let done = outputs.split(2, from, |_, response| {
            all.push(response.to_vec());
            Ok(())
        });
        assert!(done.is_ok());
        assert_eq!(all, [b"ab15", b"cd26"]);
        assert_eq!(split(&[&[2], &[]], 4, &tensors[..2]), None);
        assert_eq!(split(&[&[2]], 4, &tensors[..1]), None);
    }

    #[test]
    fn an_output_that_overflows_is_named() {
        let mut model = of_shapes(&[&[2], &[3]]);
        model.other_outputs[0].shape = vec![usize::MAX, 2];
        let e = Outputs::new(&model).expect_err("too large");
        assert_eq!(e.to_string(), "engine.model: tensor `[3]` is too large");
    }
}
