//! The next byte of a text.

use super::cross_entropy;
use super::gpt::{Gpt, GptOptions};
use crate::data::text::{Text, TextOptions};
use crate::parameters::ModelBuilder;
use crate::task::{
    Batch, DataSource, GivenParameters, LossSum, Mode, Model, ParameterError, Parameters, Split, Task,
    TaskError,
};
use std::path::PathBuf;
use tch::Kind;

/// `language-model`. Parameters:
///
/// | field | default | meaning |
/// |---|---|---|
/// | `data` | required | any file; its bytes are the tokens |
/// | `layers`, `width`, `heads` | 4, 128, 4 | shape of the transformer |
/// | `context` | 128 | tokens of a sample |
/// | `stride` | `context` | bytes from one sample's start to the next one's |
/// | `dropout` | 0 | probability, after the embeddings and on each branch |
/// | `vocab` | 256 | distinct tokens; every byte must be below it |
/// | `testFraction` | 0.05 | share of the file, at its end, kept for testing |
/// | `limit`, `testLimit` | all | use only the first so many samples |
///
/// A unit is a token; the last sample may have fewer than `context` and counts those it has. Metric:
/// `bitsPerByte`.
#[derive(Clone, Copy, Debug)]
pub struct LanguageModel;

#[derive(Clone, Debug)]
struct Options {
    data: PathBuf,
    model: GptOptions,
    text: TextOptions,
    test_limit: Option<u64>,
}

impl Task for LanguageModel {
    fn name(&self) -> &str {
        "language-model"
    }

    fn parameters(&self, given: &GivenParameters) -> Result<Parameters, ParameterError> {
        let data = given.path("data", "/data/text.txt")?;
        let width = given.u64_within("width", Some(128), 1..=65_536)?;
        let heads = given.u64_within("heads", Some(4), 1..=1024)?;
        if width % heads != 0 {
            let problem = format!("{heads} does not divide width {width}; give a divisor of it");
            return Err(ParameterError::new("heads", problem));
        }
        let context = given.u64_within("context", Some(128), 1..=1 << 20)?;
        let vocab = given.u64_within("vocab", Some(256), 2..=1 << 24)?;
        let options = Options {
            data,
            model: GptOptions {
                vocab: vocab as i64,
                context: context as i64,
                width: width as i64,
                heads: heads as i64,
                layers: given.u64_within("layers", Some(4), 1..=1024)? as i64,
                dropout: given.f64_within("dropout", 0.0, 0.0..=0.95)?,
            },
            text: TextOptions {
                context,
                stride: given.u64_within("stride", Some(context), 1..=1 << 40)?,
                vocab,
                test_fraction: given.f64_within("testFraction", 0.05, 0.0..=0.9)?,
                limit: given.optional_count("limit")?,
            },
            test_limit: given.optional_count("testLimit")?,
        };
        given.reject_unknown()?;
        Ok(Parameters::new(options))
    }

    fn model(&self, builder: &ModelBuilder, p: &Parameters) -> Result<Box<dyn Model>, TaskError> {
        Ok(Box::new(Gpt::new(builder, p.get::<Options>()?.model)?))
    }

    fn data(&self, split: Split, p: &Parameters) -> Result<Box<dyn DataSource>, TaskError> {
        let options = p.get::<Options>()?;
        let mut text = options.text;
        if split == Split::Test {
            text.limit = options.test_limit;
        }
        Ok(Box::new(Text::open(&options.data, split, text)?))
    }

    fn units_per_sample(&self, p: &Parameters) -> Result<u64, TaskError> {
        Ok(p.get::<Options>()?.text.context)
    }

    fn loss(&self, model: &dyn Model, batch: &Batch, mode: &Mode) -> Result<LossSum, TaskError> {
        let scores = model.forward(&batch.inputs, mode)?.f_flatten(0, 1)?;
        let loss = cross_entropy(&scores, &batch.targets.f_flatten(0, 1)?, batch.units)?;
        if mode.is_training() {
            return Ok(loss);
        }
        let bits = loss.sum.f_to_kind(Kind::Double)?.f_double_value(&[])? / std::f64::consts::LN_2;
        Ok(loss.with_metric("bitsPerByte", bits))
    }
}
