"""The parts a method is composed of: rewards, advantages, losses; each part is one module with one pure function."""
