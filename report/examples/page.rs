fn main() {
    assert_eq!(
        report::command(std::env::args_os().skip(1)),
        report::Outcome::Good
    );
}
