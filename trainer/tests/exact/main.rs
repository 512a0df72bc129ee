//! Exactness of the whole training loop, in double precision: the claims of strategies.md as tests.

#![allow(unreachable_pub, missing_docs)]

mod count;
mod support;
