//! Tells the linker where libtorch lies, so that the binaries start without LD_LIBRARY_PATH.

fn main() {
    // torch-sys, a direct dependency, reports the folder that it linked against.
    let Ok(lib) = std::env::var("DEP_TCH_LIBTORCH_LIB") else {
        println!("cargo::error=torch-sys did not say where libtorch is; set LIBTORCH to its folder");
        return;
    };
    println!("cargo::rustc-link-arg=-Wl,-rpath,{lib}");
}
