//! The order of samples: a keyed bijection of an epoch's indices, computed per index, nothing stored.
