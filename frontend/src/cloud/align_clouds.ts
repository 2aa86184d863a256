/** The rotation, with a reflection if it fits better, that brings one cloud nearest to another with the same tokens. */

type Matrix3 = number[]

/** Steps of Newton's method. Each doubles the number of correct digits. */
const N_STEPS = 30
/** Relative size of a determinant below which no rotation is determined, for example of points on a line. */
const SMALLEST_DETERMINANT = 1e-9

/** The orthogonal matrix Q (rows first) with the smallest ‖Q·from − to‖ over corresponding points (n × 3). The identity where none is determined. */
export function aligningRotation(from: Float32Array, to: Float32Array): Matrix3 {
  const product = new Array<number>(9).fill(0)
  for (let offset = 0; offset < from.length; offset += 3)
    for (let row = 0; row < 3; row++) for (let column = 0; column < 3; column++) product[row * 3 + column]! += to[offset + row]! * from[offset + column]!
  const size = Math.hypot(...product)
  if (!(Math.abs(determinant(product)) > SMALLEST_DETERMINANT * size ** 3)) return [1, 0, 0, 0, 1, 0, 0, 0, 1]
  return polarFactor(product.map((value) => value / size))
}

/** The orthogonal factor of a regular matrix, by Newton's method: X ← (X + X⁻ᵀ) / 2. */
function polarFactor(matrix: Matrix3): Matrix3 {
  let factor = matrix
  for (let step = 0; step < N_STEPS; step++) {
    const [cofactors, scale] = [cofactorMatrix(factor), determinant(factor)]
    factor = factor.map((value, index) => (value + cofactors[index]! / scale) / 2)
  }
  return factor
}

function cofactorMatrix(m: Matrix3): Matrix3 {
  const minor = (a: number, b: number, c: number, d: number) => m[a]! * m[d]! - m[b]! * m[c]!
  return [minor(4, 5, 7, 8), -minor(3, 5, 6, 8), minor(3, 4, 6, 7), -minor(1, 2, 7, 8), minor(0, 2, 6, 8), -minor(0, 1, 6, 7), minor(1, 2, 4, 5), -minor(0, 2, 3, 5), minor(0, 1, 3, 4)]
}

function determinant(m: Matrix3): number {
  const cofactors = cofactorMatrix(m)
  return m[0]! * cofactors[0]! + m[1]! * cofactors[1]! + m[2]! * cofactors[2]!
}

/** Points (n × 3) after a rotation. */
export function rotatePoints(points: Float32Array, rotation: Matrix3): Float32Array {
  const out = new Float32Array(points.length)
  for (let offset = 0; offset < points.length; offset += 3)
    for (let row = 0; row < 3; row++) for (let column = 0; column < 3; column++) out[offset + row]! += rotation[row * 3 + column]! * points[offset + column]!
  return out
}
