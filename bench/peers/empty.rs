// What is wanted is the sources that this crate depends on.
