//! Exactness of the whole training loop, in double precision: the claims of the strategy notes as tests.

#![allow(unreachable_pub, missing_docs)]

mod accumulation;
mod agreement;
mod count;
mod failures;
mod invariants;
mod leaving;
mod outages;
mod saved;
mod sometimes;
mod storage;
mod support;
mod tokens;
