//! Element types: their codes on the wire, sizes and Rust counterparts.

use bytemuck::Pod;
use half::{bf16, f16};
use serde::{Deserialize, Serialize};

/// What a buffer's bytes mean. The codes are part of the wire protocol and never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum DType {
    /// IEEE 754 binary32.
    F32 = 1,
    /// IEEE 754 binary64.
    F64 = 2,
    /// IEEE 754 binary16; sums are taken in binary32 and rounded once.
    F16 = 3,
    /// bfloat16; sums are taken in binary32 and rounded once.
    Bf16 = 4,
    /// Signed 32 bits; sums wrap.
    I32 = 5,
    /// Signed 64 bits; sums wrap.
    I64 = 6,
    /// Unsigned 8 bits; sums wrap.
    U8 = 7,
    /// Unsigned 64 bits; sums wrap.
    U64 = 8,
}

impl DType {
    /// All types, for tests and tables.
    pub const ALL: [DType; 8] = [
        DType::F32,
        DType::F64,
        DType::F16,
        DType::Bf16,
        DType::I32,
        DType::I64,
        DType::U8,
        DType::U64,
    ];

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            DType::U8 => 1,
            DType::F16 | DType::Bf16 => 2,
            DType::F32 | DType::I32 => 4,
            DType::F64 | DType::I64 | DType::U64 => 8,
        }
    }

    /// The code on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The type of a code; `None` for a code that this version does not know.
    pub fn from_code(code: u8) -> Option<DType> {
        DType::ALL.into_iter().find(|dtype| dtype.code() == code)
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::F16 => "f16",
            DType::Bf16 => "bf16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::U8 => "u8",
            DType::U64 => "u64",
        })
    }
}

/// A Rust type that a buffer can be read and written as.
pub trait Element: Pod + Send + Sync + private::Sealed {
    /// Its element type.
    const DTYPE: DType;
}

mod private {
    /// Keeps the list of element types closed: the wire protocol knows no others.
    pub trait Sealed {}
}

macro_rules! element {
    ($($rust:ty => $dtype:ident),*) => {$(
        impl private::Sealed for $rust {}
        impl Element for $rust { const DTYPE: DType = DType::$dtype; }
    )*};
}
element!(f32 => F32, f64 => F64, f16 => F16, bf16 => Bf16, i32 => I32, i64 => I64, u8 => U8, u64 => U64);
