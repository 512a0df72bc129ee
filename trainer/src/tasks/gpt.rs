//! A decoder-only transformer: normalisation before each block, learned positions, causal attention.

use crate::layers::{Embedding, LayerNorm, Linear};
use crate::parameters::{BuildError, ModelBuilder};
use crate::task::{Mode, Model, TaskError};
use tch::Tensor;

/// Deviation of the embeddings at the start.
const EMBEDDING_DEVIATION: f64 = 0.02;

/// Shape of the model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GptOptions {
    /// Distinct tokens.
    pub vocab: i64,
    /// Longest sequence.
    pub context: i64,
    /// Numbers per token; divisible by `heads`.
    pub width: i64,
    /// Attention heads.
    pub heads: i64,
    /// Blocks.
    pub layers: i64,
    /// Probability of dropout after the embeddings and on each block's two branches.
    pub dropout: f64,
}

/// Tokens `[samples, tokens]` to scores `[samples, tokens, vocab]`.
#[derive(Debug)]
pub struct Gpt {
    tokens: Embedding,
    positions: Embedding,
    blocks: Vec<Block>,
    norm: LayerNorm,
    head: Linear,
    dropout: f64,
}

impl Gpt {
    /// Registers the model's parameters.
    ///
    /// # Errors
    /// When the builder refuses a name or a shape.
    pub fn new(builder: &ModelBuilder, options: GptOptions) -> Result<Self, BuildError> {
        let width = options.width;
        let (tokens, positions) = (builder.sub("tokens"), builder.sub("positions"));
        Ok(Gpt {
            tokens: Embedding::new(&tokens, options.vocab, width, EMBEDDING_DEVIATION)?,
            positions: Embedding::new(&positions, options.context, width, EMBEDDING_DEVIATION)?,
            blocks: (0..options.layers)
                .map(|layer| Block::new(&builder.sub("blocks").sub(layer), options))
                .collect::<Result<_, _>>()?,
            norm: LayerNorm::new(&builder.sub("norm"), width)?,
            head: Linear::without_bias(&builder.sub("head"), width, options.vocab)?,
            dropout: options.dropout,
        })
    }
}

impl Model for Gpt {
    fn forward(&self, input: &Tensor, mode: &Mode) -> Result<Tensor, TaskError> {
        let (_, tokens) = input.size2()?;
        let mut state = self
            .tokens
            .forward(input)?
            .f_add(&self.positions.first(tokens)?)?;
        state = mode.dropout(&state, self.dropout)?;
        for block in &self.blocks {
            state = block.forward(&state, mode)?;
        }
        self.head.forward(&self.norm.forward(&state)?)
    }
}

#[derive(Debug)]
struct Block {
    norm1: LayerNorm,
    attention: Linear,
    projection: Linear,
    norm2: LayerNorm,
    expand: Linear,
    contract: Linear,
    heads: i64,
    dropout: f64,
}

impl Block {
    fn new(builder: &ModelBuilder, options: GptOptions) -> Result<Self, BuildError> {
        let width = options.width;
        Ok(Block {
            norm1: LayerNorm::new(&builder.sub("norm1"), width)?,
            attention: Linear::new(&builder.sub("attention"), width, 3 * width)?,
            projection: Linear::new(&builder.sub("projection"), width, width)?,
            norm2: LayerNorm::new(&builder.sub("norm2"), width)?,
            expand: Linear::new(&builder.sub("expand"), width, 4 * width)?,
            contract: Linear::new(&builder.sub("contract"), 4 * width, width)?,
            heads: options.heads,
            dropout: options.dropout,
        })
    }

    fn forward(&self, input: &Tensor, mode: &Mode) -> Result<Tensor, TaskError> {
        let attended = self
            .projection
            .forward(&self.attend(&self.norm1.forward(input)?)?)?;
        let state = input.f_add(&mode.dropout(&attended, self.dropout)?)?;
        let wide = self
            .expand
            .forward(&self.norm2.forward(&state)?)?
            .f_gelu("none")?;
        let narrow = self.contract.forward(&wide)?;
        Ok(state.f_add(&mode.dropout(&narrow, self.dropout)?)?)
    }

    fn attend(&self, input: &Tensor) -> Result<Tensor, TaskError> {
        let (samples, tokens, width) = input.size3()?;
        let split = [samples, tokens, 3, self.heads, width / self.heads];
        let parts = self
            .attention
            .forward(input)?
            .f_view(split)?
            .f_permute([2, 0, 3, 1, 4])?;
        let (query, key, value) = (
            parts.f_select(0, 0)?,
            parts.f_select(0, 1)?,
            parts.f_select(0, 2)?,
        );
        let attended = Tensor::f_scaled_dot_product_attention(
            &query,
            &key,
            &value,
            None::<&Tensor>,
            0.0,
            true,
            None,
            false,
        )?;
        Ok(attended.f_transpose(1, 2)?.f_reshape([samples, tokens, width])?)
    }
}
