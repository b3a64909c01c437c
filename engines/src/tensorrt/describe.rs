//! Converts the inputs and outputs of a plan to a model spec. Plain data.

use std::path::Path;

use qdl::model::{ModelSpec, TensorSpec};

use super::plan::PlanTensor;
use crate::{EngineError, EngineParams};

/// Model spec of the plan, indices of its inputs, and index of its output.
pub(super) fn describe(
    plan: &Path,
    params: &EngineParams,
    tensors: &[PlanTensor],
) -> Result<(ModelSpec, Vec<usize>, usize), EngineError> {
    let refuse = |t: &PlanTensor, reason: String| EngineError::tensor(plan, &t.name, reason);
    let spec = |t: &PlanTensor| -> Result<TensorSpec, EngineError> {
        let dtype = t
            .dtype
            .ok_or_else(|| refuse(t, "is of a type that is not served".to_owned()))?;
        if !t.linear {
            return Err(refuse(t, "is laid out in a way of TensorRT's own: build the plan with linear inputs and outputs".to_owned()));
        }
        let [_, inner @ ..] = &t.dims[..] else {
            return Err(refuse(t, "has no batch dimension".to_owned()));
        };
        let shape: Result<Vec<usize>, _> = inner.iter().map(|d| usize::try_from(*d)).collect();
        let shape = shape.map_err(|_| {
            refuse(
                t,
                format!(
                    "has a dimension of open length besides the batch: {:?}",
                    t.dims
                ),
            )
        })?;
        Ok(TensorSpec {
            ragged: !t.output && params.is_ragged(&t.name),
            name: t.name.clone(),
            dtype,
            shape,
        })
    };
    // In the configuration's order, which is the order of the inputs in a sample.
    let mut inputs: Vec<&PlanTensor> = tensors.iter().filter(|t| !t.output).collect();
    if let Some(s) = &params.spec {
        let place = |t: &PlanTensor| {
            s.inputs
                .iter()
                .position(|i| i.name == t.name)
                .unwrap_or(usize::MAX)
        };
        inputs.sort_by_key(|t| place(t));
    }
    let outputs: Vec<&PlanTensor> = tensors.iter().filter(|t| t.output).collect();
    let ([output], false) = (&outputs[..], inputs.is_empty()) else {
        let reason = format!(
            "has {} inputs and {} outputs, and one output is wanted: leave the others out of the \
             graph, or use `kind: onnx`, which sends several",
            inputs.len(),
            outputs.len()
        );
        return Err(EngineError::model(plan, reason));
    };
    let model = ModelSpec {
        name: params.model.clone(),
        inputs: inputs.iter().map(|t| spec(t)).collect::<Result<_, _>>()?,
        output: spec(output)?,
        other_outputs: Vec::new(),
    };
    Ok((
        model,
        inputs.iter().map(|t| t.index).collect(),
        output.index,
    ))
}

#[cfg(test)]
mod tests {
    use qdl::model::DType;

    use super::*;
    use crate::{
        EngineKind,
        testkit::{model, ragged, tensor as spec},
    };

    fn tensor(index: usize, name: &str, output: bool, dims: &[i64]) -> PlanTensor {
        PlanTensor {
            index,
            name: name.to_owned(),
            output,
            dtype: Some(DType::I8),
            linear: true,
            dims: dims.to_vec(),
        }
    }

    fn refused(tensors: &[PlanTensor]) -> String {
        let e = describe(
            Path::new("p.plan"),
            &EngineParams::new(EngineKind::TensorRt),
            tensors,
        );
        let text = e.expect_err("refused").to_string();
        assert!(
            text.starts_with("model file p.plan: ") && !text.contains('\n'),
            "{text}"
        );
        text
    }

    #[test]
    fn inputs_come_in_the_order_of_the_configuration() {
        let (a, b) = (ragged("a", DType::I8, &[3]), spec("b", DType::I8, &[3]));
        let params = EngineParams {
            spec: Some(model(vec![b, a], spec("c", DType::I8, &[]))),
            ..EngineParams::new(EngineKind::TensorRt)
        };
        let tensors = [
            tensor(0, "a", false, &[-1, 3]),
            tensor(1, "c", true, &[-1]),
            tensor(2, "b", false, &[-1, 3]),
        ];
        let (model, inputs, output) = describe(Path::new("p"), &params, &tensors).expect("fine");
        assert_eq!((inputs, output), (vec![2, 0], 1));
        assert_eq!(
            (model.inputs[0].ragged, model.inputs[1].ragged),
            (false, true)
        );
        assert_eq!(model.output.shape, Vec::<usize>::new());
    }

    #[test]
    fn plans_that_cannot_be_served_are_refused() {
        let input = tensor(0, "x", false, &[-1, 3]);
        let output = tensor(1, "y", true, &[-1, 1]);
        assert!(refused(std::slice::from_ref(&input)).contains("1 inputs and 0 outputs"));
        assert!(refused(&[input.clone(), output.clone(), output.clone()]).contains("2 outputs"));
        let open = tensor(0, "x", false, &[-1, -1]);
        assert!(refused(&[open, output.clone()]).contains("open length besides the batch"));
        let scalar = tensor(0, "x", false, &[]);
        assert!(refused(&[scalar, output.clone()]).contains("no batch dimension"));
        let blocked = PlanTensor {
            linear: false,
            ..input.clone()
        };
        assert!(refused(&[blocked, output.clone()]).contains("linear"));
        let odd = PlanTensor {
            dtype: None,
            ..input
        };
        assert!(refused(&[odd, output]).contains("not served"));
    }
}
