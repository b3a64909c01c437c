//! The program `frontend`; the program `qdl` under this name is the same.

#[global_allocator]
static ALLOCATOR: program::Allocator = program::Allocator;

fn main() {
    frontend::entry::main(std::env::args_os())
}
