//! Exactness of the whole training loop, in double precision: the claims of strategies.md as tests.

mod count;
mod support;
