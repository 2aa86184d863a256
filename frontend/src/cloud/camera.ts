/** A camera that orbits the cloud, and the projection of points to pixels. */

export interface Camera { yaw: number; pitch: number; distance: number; x: number; y: number; z: number }

export const START: Camera = { yaw: 0.55, pitch: 0.35, distance: 3.4, x: 0, y: 0, z: 0 }
export const FIELD_OF_VIEW = (36 * Math.PI) / 180
const NEAR_PLANE = 0.01
const FAR_PLANE = 100

/** Column-major 4 × 4, as WebGL reads it. */
export type Matrix = Float64Array

export function multiply(a: Matrix, b: Matrix): Matrix {
  const out = new Float64Array(16)
  for (let column = 0; column < 4; column++)
    for (let row = 0; row < 4; row++)
      for (let k = 0; k < 4; k++) out[column * 4 + row]! += a[k * 4 + row]! * b[column * 4 + k]!
  return out
}

/** The directions right, up and out of the screen. */
export function screenAxes({ yaw, pitch }: Camera): [number[], number[], number[]] {
  const [cy, sy, cp, sp] = [Math.cos(yaw), Math.sin(yaw), Math.cos(pitch), Math.sin(pitch)]
  return [[cy, 0, -sy], [sp * sy, cp, sp * cy], [cp * sy, -sp, cp * cy]]
}

/** World to camera coordinates: rotate by yaw and pitch, then move back. */
export function viewMatrix(camera: Camera): Matrix {
  const { distance, x, y, z } = camera
  const [right, up, back] = screenAxes(camera)
  const translation = (axis: number[]) => -(axis[0]! * x + axis[1]! * y + axis[2]! * z)
  return Float64Array.of(
    right[0]!, up[0]!, back[0]!, 0,
    right[1]!, up[1]!, back[1]!, 0,
    right[2]!, up[2]!, back[2]!, 0,
    translation(right), translation(up), translation(back) - distance, 1,
  )
}

export function projectionMatrix(aspect: number): Matrix {
  const f = 1 / Math.tan(FIELD_OF_VIEW / 2)
  const out = new Float64Array(16)
  out[0] = aspect >= 1 ? f / aspect : f
  out[5] = aspect >= 1 ? f : f * aspect
  out[10] = (FAR_PLANE + NEAR_PLANE) / (NEAR_PLANE - FAR_PLANE)
  out[11] = -1
  out[14] = (2 * FAR_PLANE * NEAR_PLANE) / (NEAR_PLANE - FAR_PLANE)
  return out
}

/** Projects points (n × 3) to pixel x, pixel y and depth. The depth is NaN behind the camera. */
export function projector(camera: Camera, width: number, height: number): (points: Float32Array) => Float32Array {
  const m = multiply(projectionMatrix(width / height), viewMatrix(camera))
  return (points) => {
    const out = new Float32Array(points.length)
    for (let offset = 0; offset < points.length; offset += 3) {
      const [x, y, z] = [points[offset]!, points[offset + 1]!, points[offset + 2]!]
      const w = m[3]! * x + m[7]! * y + m[11]! * z + m[15]!
      out[offset] = ((m[0]! * x + m[4]! * y + m[8]! * z + m[12]!) / w + 1) * 0.5 * width
      out[offset + 1] = (1 - (m[1]! * x + m[5]! * y + m[9]! * z + m[13]!) / w) * 0.5 * height
      out[offset + 2] = w > NEAR_PLANE ? w : NaN
    }
    return out
  }
}

export const project = (points: Float32Array, camera: Camera, width: number, height: number): Float32Array => projector(camera, width, height)(points)

const clamp = (value: number, low: number, high: number) => Math.max(low, Math.min(high, value))

export const rotateCamera = (camera: Camera, dx: number, dy: number): Camera => ({ ...camera, yaw: camera.yaw - dx * 0.008, pitch: clamp(camera.pitch + dy * 0.008, -1.55, 1.55) })
export const zoomCamera = (camera: Camera, factor: number): Camera => ({ ...camera, distance: clamp(camera.distance * factor, 0.4, 12) })

/** The camera of a reader who looks at a frame instead of the ball of radius 1 around the origin. */
export const frameCamera = (camera: Camera, { x, y, z, size }: { x: number; y: number; z: number; size: number }): Camera =>
  ({ ...camera, distance: camera.distance * size, x: x + camera.x * size, y: y + camera.y * size, z: z + camera.z * size })

/** Size of a pixel in the plane of the target. */
export const pixelSize = (camera: Camera, width: number, height: number): number => (2 * camera.distance * Math.tan(FIELD_OF_VIEW / 2)) / Math.min(width, height)

/** How much larger a dot is drawn than in the plane of the target. Distance has less effect than in nature. */
export const depthScale = (camera: Camera, depth: number): number => clamp(camera.distance / depth, 0.6, 1.7)

/** Moves the camera parallel to the screen, by pixels. */
export function panCamera(camera: Camera, dx: number, dy: number, width: number, height: number): Camera {
  const unit = pixelSize(camera, width, height)
  const m = viewMatrix(camera)
  const [a, b] = [-dx * unit, dy * unit]
  return { ...camera, x: camera.x + a * m[0]! + b * m[1]!, y: camera.y + a * m[4]! + b * m[5]!, z: camera.z + a * m[8]! + b * m[9]! }
}
