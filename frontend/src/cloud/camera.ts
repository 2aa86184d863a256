/** An eye that circles the cloud: where a point of space falls on the sheet, for whichever hand draws it. */

export interface Eye { yaw: number; pitch: number; distance: number; x: number; y: number; z: number }

export const START: Eye = { yaw: 0.55, pitch: 0.35, distance: 3.4, x: 0, y: 0, z: 0 }
export const ANGLE = (36 * Math.PI) / 180
const NEAR = 0.01
const FAR = 100

/** Column-major 4 × 4, as WebGL reads it. */
export type Matrix = Float64Array

export function times(a: Matrix, b: Matrix): Matrix {
  const out = new Float64Array(16)
  for (let column = 0; column < 4; column++)
    for (let row = 0; row < 4; row++)
      for (let k = 0; k < 4; k++) out[column * 4 + row]! += a[k * 4 + row]! * b[column * 4 + k]!
  return out
}

/** World to eye: turn by yaw, then by pitch, then step back. */
export function viewOf({ yaw, pitch, distance, x, y, z }: Eye): Matrix {
  const [cy, sy, cp, sp] = [Math.cos(yaw), Math.sin(yaw), Math.cos(pitch), Math.sin(pitch)]
  const right = [cy, 0, -sy]
  const up = [sp * sy, cp, sp * cy]
  const back = [cp * sy, -sp, cp * cy]
  const off = (axis: number[]) => -(axis[0]! * x + axis[1]! * y + axis[2]! * z)
  return Float64Array.of(
    right[0]!, up[0]!, back[0]!, 0,
    right[1]!, up[1]!, back[1]!, 0,
    right[2]!, up[2]!, back[2]!, 0,
    off(right), off(up), off(back) - distance, 1,
  )
}

export function lensOf(aspect: number): Matrix {
  const f = 1 / Math.tan(ANGLE / 2)
  const out = new Float64Array(16)
  out[0] = aspect >= 1 ? f / aspect : f
  out[5] = aspect >= 1 ? f : f * aspect
  out[10] = (FAR + NEAR) / (NEAR - FAR)
  out[11] = -1
  out[14] = (2 * FAR * NEAR) / (NEAR - FAR)
  return out
}

/** Screen x, y in pixels and depth of points (n × 3), one triple each; behind the eye the depth is NaN. */
export function project(points: Float32Array, eye: Eye, width: number, height: number, out = new Float32Array(points.length)): Float32Array {
  const m = times(lensOf(width / height), viewOf(eye))
  for (let at = 0; at < points.length; at += 3) {
    const [x, y, z] = [points[at]!, points[at + 1]!, points[at + 2]!]
    const w = m[3]! * x + m[7]! * y + m[11]! * z + m[15]!
    out[at] = ((m[0]! * x + m[4]! * y + m[8]! * z + m[12]!) / w + 1) * 0.5 * width
    out[at + 1] = (1 - (m[1]! * x + m[5]! * y + m[9]! * z + m[13]!) / w) * 0.5 * height
    out[at + 2] = w > NEAR ? w : NaN
  }
  return out
}

const clamp = (value: number, low: number, high: number) => Math.max(low, Math.min(high, value))

export const turned = (eye: Eye, dx: number, dy: number): Eye => ({ ...eye, yaw: eye.yaw - dx * 0.008, pitch: clamp(eye.pitch + dy * 0.008, -1.55, 1.55) })
export const nearer = (eye: Eye, factor: number): Eye => ({ ...eye, distance: clamp(eye.distance * factor, 0.4, 12) })

/** How long a pixel is, in the plane that the eye looks at. */
export const unitOf = (eye: Eye, width: number, height: number): number => (2 * eye.distance * Math.tan(ANGLE / 2)) / Math.min(width, height)

/** Slid along the sheet by pixels. */
export function slid(eye: Eye, dx: number, dy: number, width: number, height: number): Eye {
  const unit = unitOf(eye, width, height)
  const m = viewOf(eye)
  const [a, b] = [-dx * unit, dy * unit]
  return { ...eye, x: eye.x + a * m[0]! + b * m[1]!, y: eye.y + a * m[4]! + b * m[5]!, z: eye.z + a * m[8]! + b * m[9]! }
}
