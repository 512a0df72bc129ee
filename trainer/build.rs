//! Compiles the C++ shim and tells the linker where libtorch lies, so that the binaries start without
//! LD_LIBRARY_PATH.

use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=cpp/shim.cpp");
    // torch-sys, a direct dependency, reports the folder that it linked against.
    let Ok(lib) = std::env::var("DEP_TCH_LIBTORCH_LIB") else {
        println!("cargo::error=torch-sys did not say where libtorch is; set LIBTORCH to its folder");
        return;
    };
    let headers = Path::new(&lib).with_file_name("include");
    if !headers.join("ATen/core/Tensor.h").is_file() {
        println!(
            "cargo::error=no libtorch headers in {}; set LIBTORCH to a folder with include/ and lib/",
            headers.display()
        );
        return;
    }
    cc::Build::new()
        .cpp(true)
        .std("c++20")
        .file("cpp/shim.cpp")
        // As system headers, libtorch's own warnings stay out of sight and ours stay on.
        .flag(format!("-isystem{}", headers.display()))
        .warnings(true)
        .extra_warnings(true)
        .define("AT_PER_OPERATOR_HEADERS", None)
        .define("_GLIBCXX_USE_CXX11_ABI", "1")
        // Debug information of the headers would be most of the object file; the shim is one call deep.
        .flag("-g0")
        .opt_level(1)
        .compile("gradsync_shim");
    println!("cargo::rustc-link-search=native={lib}");
    println!("cargo::rustc-link-lib=dylib=torch_cpu");
    println!("cargo::rustc-link-lib=dylib=c10");
    println!("cargo::rustc-link-arg=-Wl,-rpath,{lib}");
}
