import { describe, expect, it } from 'vitest'

import { fasterRenderer } from '../src/cloud/choose_renderer'
import { depthScale, frameCamera, projectionMatrix, zoomCamera, project, panCamera, START, multiply, rotateCamera, viewMatrix } from '../src/cloud/camera'
import { valuesAt } from '../src/cloud/token_colours'
import { arcControl, boundingBall, arcPoints, changingWords, frameAt, pointsAt, stepFrames, placeLabels, scaleToBall, strongestArcs, tokenPath, type Bounds, type Box, type Scene } from '../src/cloud/scene'
import { axisSegments, ghostSegments, pathOffsets, projectScene, tokenAt } from '../src/cloud/renderer'
import { visibleLabels } from '../src/cloud/labels'
import { shortenText } from '../src/cloud/text_atlas'
import { LIGHT } from '../src/palette'
import type { AnalysisResult, TraceInfo, Points } from '../src/api'

const points = (values: number[], steps: number, tokens: number): Points => ({ points: Float32Array.from(values), steps, tokens, star: null, share: 1, shares: [], space: 'raw', axes: 'all' })

describe('the camera', () => {
  it('projects its target to the centre', () => {
    const [x, y, depth] = project(Float32Array.of(0, 0, 0), START, 400, 300)
    expect(x).toBeCloseTo(200)
    expect(y).toBeCloseTo(150)
    expect(depth).toBeCloseTo(START.distance)
  })
  it('keeps its target at the centre while it rotates and zooms', () => {
    const camera = zoomCamera(rotateCamera({ ...START, x: 1, y: 2, z: 3 }, 50, -20), 0.5)
    const [x, y] = project(Float32Array.of(1, 2, 3), camera, 400, 300)
    expect(x).toBeCloseTo(200)
    expect(y).toBeCloseTo(150)
  })
  it('pans as far as the pointer', () => {
    const [x, y] = project(Float32Array.of(0, 0, 0), panCamera(START, 30, -12, 300, 500), 300, 500)
    expect(x).toBeCloseTo(180)
    expect(y).toBeCloseTo(238)
  })
  it('rotates without distortion', () => {
    const m = viewMatrix(rotateCamera(START, 77, 31))
    for (let a = 0; a < 3; a++) for (let b = 0; b < 3; b++) {
      let dot = 0
      for (let k = 0; k < 3; k++) dot += m[a * 4 + k]! * m[b * 4 + k]!
      expect(dot).toBeCloseTo(a === b ? 1 : 0)
    }
  })
  it('multiplies matrices', () => {
    const m = multiply(projectionMatrix(2), viewMatrix(START))
    const [x] = project(Float32Array.of(0.3, 0.1, -0.2), START, 200, 100)
    const w = m[3]! * 0.3 + m[7]! * 0.1 + m[11]! * -0.2 + m[15]!
    expect(x).toBeCloseTo(((m[0]! * 0.3 + m[4]! * 0.1 + m[8]! * -0.2 + m[12]!) / w + 1) * 100, 4)
  })
  it('draws the axes in the lower right corner', () => {
    const viewport = { width: 800, height: 500, ratio: 1, theme: LIGHT, controls: [] }
    for (const segment of axisSegments(START, viewport)) {
      const [x, y] = project(Float32Array.from(segment.slice(0, 3)), START, 800, 500)
      expect(x).toBeCloseTo(664, 1)
      expect(y).toBeCloseTo(404, 1)
    }
  })
})

describe('the renderer', () => {
  it('is a 2D canvas where the processor would draw WebGL, or nothing would', () => {
    const software = ['ANGLE (Google, Vulkan 1.3.0 (SwiftShader Device (Subzero) (0x0000C0DE)), SwiftShader driver)', 'llvmpipe (LLVM 15.0.7, 256 bits)', 'ANGLE (Microsoft, Microsoft Basic Render Driver Direct3D11)', 'Apple Software Renderer', null]
    expect(software.map(fasterRenderer)).toEqual(software.map(() => 'canvas'))
  })
  it('is WebGL where a graphics card draws it', () => {
    for (const name of ['ANGLE (NVIDIA, NVIDIA GeForce RTX 3060 Direct3D11)', 'ANGLE (Apple, ANGLE Metal Renderer: Apple M2)', 'Mesa Intel(R) UHD Graphics 620', 'Mali-G78']) expect(fasterRenderer(name)).toBe('webgl')
  })
  it('draws near dots larger', () => {
    expect(depthScale(START, START.distance)).toBe(1)
    expect([START.distance / 10, START.distance * 10].map((depth) => depthScale(START, depth))).toEqual([1.7, 0.6])
  })
})

describe('the cloud', () => {
  it('interpolates between two steps', () => {
    const scaled = Float32Array.of(0, 0, 0, 2, 4, 6)
    expect([...pointsAt(scaled, 1, 0)]).toEqual([0, 0, 0])
    expect([...pointsAt(scaled, 1, 0.25)]).toEqual([0.5, 1, 1.5])
    expect([...pointsAt(scaled, 1, 9)]).toEqual([2, 4, 6])
  })
  it('is scaled to a ball of radius 1', () => {
    const cloud = points([10, 0, 0, 30, 0, 0, 10, 0, 0, 30, 0, 0], 2, 2)
    const scaled = scaleToBall(cloud, boundingBall(cloud, () => true, 2))
    expect(Math.max(...scaled)).toBeCloseTo(1)
    expect(Math.min(...scaled)).toBeCloseTo(-1)
  })
  it('has a frame for every step, which follows a cloud that shrinks', () => {
    const wide = [1, 0, 0, -1, 0, 0, 0, 1, 0, 0, -1, 0]
    const scaled = Float32Array.from([...wide, ...wide.map((x, k) => x * 0.25 + (k % 3 ? 0 : 0.5))])
    const frames = stepFrames(scaled, 4, () => true, null)
    expect(frames[0]).toMatchObject({ x: 0, y: 0, size: 1 })
    expect(frames[1]!.size).toBeCloseTo(0.25)
    expect(frames[1]!.x).toBeCloseTo(0.5)
    expect(frameAt(frames, 0.5).size).toBeCloseTo(0.5)
    // the same tokens are at the same pixels in both frames
    const pixels = (step: number) => project(scaled.subarray(step * 12, step * 12 + 12), frameCamera(START, frames[step]!), 400, 300)
    const [first, second] = [pixels(0), pixels(1)]
    for (let k = 0; k < 12; k++) if (k % 3 < 2) expect(second[k]).toBeCloseTo(first[k]!, 2)
  })
  it('frames the star with the points, unless it is far away', () => {
    const scaled = Float32Array.of(0.1, 0, 0, -0.1, 0, 0)
    expect(stepFrames(scaled, 2, () => true, [0.2, 0, 0])[0]).toMatchObject({ x: expect.closeTo(0.05), size: expect.closeTo(0.15) })
    expect(stepFrames(scaled, 2, () => true, [0.05, 0, 0])[0]).toMatchObject({ x: expect.closeTo(0), size: expect.closeTo(0.1) })
    expect(stepFrames(scaled, 2, () => true, [2, 0, 0])[0]).toMatchObject({ x: expect.closeTo(0), size: expect.closeTo(0.1) })
    const beside = [0.4 * Math.cos(START.yaw), 0, -0.4 * Math.sin(START.yaw)]
    expect(stepFrames(scaled, 2, () => true, beside)[0]!.size).toBeCloseTo(0.1) // the star needs too much room
    expect(stepFrames(scaled, 2, () => true, beside, 1.5)[0]!.size).toBeCloseTo((0.4 + 0.1) / 2 / 1.5)
    expect(stepFrames(Float32Array.of(1, 1, 1), 1, () => true, null)[0]!.size).toBeLessThanOrEqual(1)
  })
  it('ignores hidden tokens when it is scaled', () => {
    const cloud = points([0, 0, 0, 1, 0, 0, 1000, 0, 0], 1, 3)
    expect(boundingBall(cloud, (token) => token < 2, 3).size).toBeCloseTo(0.5)
  })
  it('finds the token under the pointer', () => {
    const screen = Float32Array.of(10, 10, 1, 40, 40, 1, 41, 41, NaN)
    expect(tokenAt(screen, 42, 42, () => true)).toBe(1)
    expect(tokenAt(screen, 100, 100, () => true)).toBeNull()
    expect(tokenAt(screen, 40, 40, (token) => token !== 1)).toBeNull()
  })
  it('draws the strongest arcs of a query, without self-attention', () => {
    const map = Float32Array.of(1, 0, 0, 0.5, 0.5, 0, 0.2, 0.7, 0.1)
    expect(strongestArcs(map, 3, 2)).toMatchObject([{ from: 2, to: 1 }, { from: 2, to: 0 }])
    expect(strongestArcs(map, 3, null, 1)).toHaveLength(1)
    expect(strongestArcs(Float32Array.of(0, 0, 0, -0.5, 0, 0, 0.2, 0.01, 0), 3, null)).toEqual([{ from: 1, to: 0, weight: -0.5 }, { from: 2, to: 0, weight: expect.closeTo(0.2) }])
  })
  it('bends an arc towards its control point', () => {
    const [a, b] = [[0, 0, 1], [1, 0, 0]]
    const middle = arcPoints(a, b, 2)[1]!
    arcControl(a, b).forEach((value, k) => expect(middle[k]).toBeCloseTo((a[k]! + b[k]!) / 4 + value / 2))
  })
  it('follows a token through its first steps', () => {
    const points = Float32Array.from({ length: 3 * 2 * 3 }, (_, k) => k) // 3 steps, 2 tokens
    expect([...tokenPath({ points, tokens: 2 }, 1, 2)]).toEqual([3, 4, 5, 9, 10, 11])
  })
  it('starts and ends an arc at its tokens', () => {
    const path = arcPoints([0, 0, 1], [1, 0, 0])
    expect(path[0]).toEqual([0, 0, 1])
    expect(path.at(-1)).toEqual([1, 0, 0])
  })
})

describe('labels', () => {
  it('leave room for the star', () => {
    const scene = { tokens: 2, labels: ['near', 'far'], isShown: () => true, highlighted: new Set<number>(), starLabel: 'prediction', star: [0, 0, 0], axes: [], predicting: null, pathWords: [] } as unknown as Scene
    const screen = Float32Array.of(100, 100, 1, 300, 300, 1)
    const size = () => ({ width: 60, height: 14 })
    const viewport = { width: 400, height: 400, ratio: 1, theme: LIGHT, controls: [] }
    const labelsWith = (star: Float32Array | null) => visibleLabels(scene, { points: screen, screen, star, axes: [] }, viewport, (points) => points, size).map(({ text }) => text)
    expect(labelsWith(null)).toEqual(['near', 'far'])
    expect(labelsWith(Float32Array.of(95, 104, 1))).toEqual(['prediction', 'far'])
  })
  it('of the star is left of it or below it where it would cover a button or leave the picture', () => {
    const scene = { tokens: 0, labels: [], highlighted: new Set<number>(), starLabel: 'prediction', star: [0, 0, 0], axes: [], predicting: null, pathWords: [] } as unknown as Scene
    const labelOf = (x: number, controls: Bounds[]) => visibleLabels(scene, { points: new Float32Array(), screen: new Float32Array(), star: Float32Array.of(x, 20, 1), axes: [] }, { width: 400, height: 400, ratio: 1, theme: LIGHT, controls }, (points) => points, () => ({ width: 60, height: 14 }))[0]!
    const leftOf = (x: number, controls: Bounds[]) => labelOf(x, controls).offset < 0
    const button = { x: 210, y: 0, width: 40, height: 30 }
    expect([leftOf(180, []), leftOf(180, [button]), leftOf(350, [])]).toEqual([false, true, true])
    expect(labelOf(180, [button, { ...button, x: 130 }]).drop).toBeGreaterThan(0) // neither side is free
    expect(labelOf(180, [button, { ...button, x: 130 }, { x: 0, y: 20, width: 400, height: 90 }]).drop).toBe(0) // no side is free
  })
  it('never overlap each other or the buttons, in any scene', () => {
    for (let seed = 1; seed <= 20; seed++) {
      let state = seed
      const random = () => (state = (state * 16807) % 2147483647) / 2147483647
      const [tokens, steps] = [80, 5]
      const scene = {
        points: Float32Array.from({ length: steps * tokens * 3 }, () => random() ** 2 - 0.5), tokens, playhead: 4 * random(), isShown: () => true, highlighted: new Set(seed % 2 ? [3, 4] : []), labels: Array.from({ length: tokens }, (_, token) => `token ${token}`),
        star: [random() - 0.5, random() - 0.5, 0], starLabel: 'prediction', predicting: tokens - 1, pathWords: [0, 1, 2].map((step) => ({ step, text: `word ${step}` })), axes: ['a', 'b', 'c'],
      } as unknown as Scene
      for (const [width, height] of [[780, 420], [358, 240]] as const) {
        const viewport = { width, height, ratio: 1, theme: LIGHT, controls: [{ x: width - 110, y: 0, width: 110, height: 30 }] }
        const labels = visibleLabels(scene, projectScene(scene, START, viewport), viewport, (points) => project(points, START, width, height), (text) => ({ width: 7 * text.length, height: 16 }))
        expect(labels[0]!.kind).toBe('star')
        const boxes = [...labels.map(({ box }) => box), ...viewport.controls]
        const overlapping = boxes.filter((a, index) => boxes.slice(index + 1).some((b) => a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height))
        expect(overlapping.length).toBe(0)
        for (const { x, y, width: w, height: h } of boxes.slice(1)) expect(x >= 0 && y >= 0 && x + w <= width && y + h <= height).toBe(true) // no label is cut
      }
    }
  })
  it('show the words of the path that the predicting token has travelled, before those of other tokens', () => {
    // two tokens at three steps; the predicting one moves right by 100 pixels at every step
    const points = Float32Array.of(300, 300, 1, 0, 50, 1, 300, 300, 1, 100, 50, 1, 110, 52, 1, 200, 50, 1)
    const scene = { points, tokens: 2, labels: ['other', 'last'], isShown: () => true, highlighted: new Set<number>(), starLabel: '', predicting: 1, pathWords: [{ step: 0, text: 'same' }, { step: 1, text: 'river' }] } as unknown as Scene
    const viewport = { width: 400, height: 400, ratio: 1, theme: LIGHT, controls: [] }
    const labelsAt = (playhead: number) => {
      const screen = points.slice(Math.floor(playhead) * 6, Math.floor(playhead) * 6 + 6)
      return visibleLabels({ ...scene, playhead }, { points: screen, screen, star: null, axes: [] }, viewport, (points) => points, () => ({ width: 60, height: 14 })).map(({ text, kind }) => (kind === 'path' ? `${text}*` : text))
    }
    expect(labelsAt(0)).toEqual(['last', 'other']) // the word has no room left
    expect(labelsAt(1)).toEqual(['last', 'river*', 'same*', 'other']) // the word of this step is below the ring
    expect(labelsAt(2)).toEqual(['last', 'river*', 'same*']) // the other token has no room left
    expect(pathOffsets({ ...scene, playhead: 2, hasTrail: () => true })).toEqual([3, 9])
    expect(pathOffsets({ ...scene, playhead: 2, hasTrail: () => true, isShown: () => false })).toEqual([])
  })
  it('show the path before the edits as far as the playhead', () => {
    const scene = { ghostPath: Float32Array.of(0, 0, 0, 1, 0, 0, 1, 2, 0) } as unknown as Scene
    const ends = (playhead: number) => ghostSegments({ ...scene, playhead }).map(([start, end]) => [...start, ...end])
    expect(ends(0)).toEqual([])
    expect(ends(0.5)).toEqual([[0, 0, 0, 1, 0, 0]])
    expect(ends(9)).toEqual([[0, 0, 0, 1, 0, 0], [1, 0, 0, 1, 2, 0]])
    expect(ghostSegments({ ...scene, ghostPath: null, playhead: 2 })).toEqual([])
  })
  it('name the word of a path where it changes', () => {
    expect(changingWords(['a', 'a', 'b', 'a', 'end'])).toEqual([{ step: 0, text: 'a' }, { step: 2, text: 'b' }, { step: 3, text: 'a' }])
    expect(changingWords(['end'])).toEqual([])
  })
  it('never overlap, and earlier ones win', () => {
    const boxes: Box[] = Array.from({ length: 200 }, (_, token) => ({ token, choice: 0, x: (token * 37) % 300, y: (token * 53) % 200, width: 40, height: 15 }))
    const placed = placeLabels(boxes.map((box) => box.token), (token) => [boxes[token]!], 300, 200, 512)
    expect(placed[0]!.token).toBe(0)
    expect(placed.length).toBeGreaterThan(10)
    const areDisjoint = (a: Box, b: Box) => a.x >= b.x + b.width || b.x >= a.x + a.width || a.y >= b.y + b.height || b.y >= a.y + a.height
    for (const a of placed) for (const b of placed) if (a !== b) expect(areDisjoint(a, b)).toBe(true)
  })
  it('show control characters as boxes', () => {
    expect(shortenText('a\u202eb\u0000c')).toBe('a□b□c')
    expect([...shortenText('🙂'.repeat(50))].length).toBe(18)
  })
})

it('maps a field of some tokens and steps to the text', () => {
  const info = { tokens: Array.from({ length: 4 }, () => ({})), steps: ['embed', 'L0.resid_mid', 'L0.resid_post'] } as unknown as TraceInfo
  const result = { coords: { point: { dims: ['point'], values: ['embed', 'L0.resid_post'] }, token: { dims: ['token'], values: [1, 3] } } } as unknown as AnalysisResult
  const field = { values: Float32Array.of(1, 2, 3, 4), shape: [2, 2], dims: ['point', 'token'] }
  expect([...valuesAt(result, field, info, 2)]).toEqual([NaN, 3, NaN, 4])
  expect([...valuesAt(result, field, info, 0)]).toEqual([NaN, 1, NaN, 2])
})
