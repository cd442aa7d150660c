"""FunnyBirds: rendered birds of parts that can be left out [hesse2023funnybirds]."""
